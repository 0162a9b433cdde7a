"""A full disk, and a folder without write permission, at every stage of a run: a clear error, and the same command goes
on once there is room, with the same results to the bit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from full_disk import STAGES

HERE = Path(__file__).parents[1]
OWN_DISK = ("unshare", "-rm")
NO_POWERS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


def works(*command):
    """Whether this machine lets us do it."""
    return bool(shutil.which(command[0])) and subprocess.run(command, capture_output=True).returncode == 0


def sweep(how, before, folder, encoder_folder):
    folder.mkdir()
    command = [*before, sys.executable, HERE / "full_disk.py", folder, encoder_folder, how]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "COLUMNS": "1000"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(found):
    assert found["first"]["code"] == 0, found["first"]
    assert list(found["attempts"]) == list(STAGES)
    for stage, attempt in found["attempts"].items():
        assert attempt["code"] == 1, (stage, attempt)
        assert STAGES[stage][1] in attempt["error"], (stage, attempt)
        assert any(word in attempt["error"] for word in ("kept", "grant access")), (stage, attempt)
    assert found["left"] == []  # nothing half-written
    assert found["last"] == {"code": 0, "error": ""}
    assert found["same"]


def test_every_stage_survives_a_full_disk(encoder_folder, tmp_path):
    """On a small disk of its own; where that cannot be mounted, with a limit on the size of files."""
    mountable = works(*OWN_DISK, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    how, before = ("disk", OWN_DISK) if mountable else ("limit", ())
    found = sweep(how, before, tmp_path / "disk", encoder_folder)
    check(found)
    places = {stage: attempt["error"].split(":")[0] for stage, attempt in found["attempts"].items()}
    if how == "disk":
        assert places["model"].endswith("hidden-seed1/model")
        assert places["checkpoint"].endswith("checkpoints/hidden-seed1")
        assert places["noise LM"].endswith(".work")


@pytest.mark.slow
def test_every_stage_survives_a_limit_on_the_size_of_files(encoder_folder, tmp_path):
    check(sweep("limit", (), tmp_path / "disk", encoder_folder))


@pytest.mark.slow
def test_every_stage_survives_a_folder_that_cannot_be_written(encoder_folder, tmp_path):
    """Permissions do not bind root, unless it gives up the power to override them."""
    before = NO_POWERS if os.geteuid() == 0 else ()
    if before and not works(*before, "true"):
        pytest.skip("root cannot give up its powers here, and permissions do not bind it")
    check(sweep("permission", before, tmp_path / "disk", encoder_folder))
