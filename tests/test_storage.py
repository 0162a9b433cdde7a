"""Atomic writes, JSON, locks and run directories."""

import errno
import json
import os
import subprocess
import sys

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.run_dir import RunDir, Trial, read_card, update_card, weights_fingerprint
from ebmcal.storage import (
    atomic_write,
    check_writable,
    explain_disk_errors,
    fingerprint,
    locked,
    read_json,
    remove_temporary_files,
    write_json,
    write_text,
)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_directory_is_replaced_as_a_whole(tmp_path):
    for content in ("one", "two"):
        with atomic_write(tmp_path / "d", directory=True) as temporary:
            (temporary / content).write_text(content)
    assert os.listdir(tmp_path / "d") == ["two"]


def test_disk_errors_name_the_file():
    with pytest.raises(EbmcalError, match="Could not write /data/x: No space left"), explain_disk_errors("/data/x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(EbmcalError, match="No space left"), explain_disk_errors("/data/x"):
        raise RuntimeError("PytorchStreamWriter failed writing file")
    with pytest.raises(KeyError), explain_disk_errors("/data/x"):
        raise KeyError("other errors pass")


def test_json_errors_name_the_file(tmp_path):
    with pytest.raises(EbmcalError, match="does not exist"):
        read_json(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(EbmcalError, match="bad.json is not valid JSON"):
        read_json(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "nan.json", {"x": float("nan")})


def test_check_writable(tmp_path):
    check_writable(tmp_path / "new" / "file.json", "--json")
    (tmp_path / "there.json").touch()
    check_writable(tmp_path / "there.json", "--json")
    with pytest.raises(EbmcalError, match=r"--json .*there.json exists already. .* --overwrite"):
        check_writable(tmp_path / "there.json", "--json", overwrite=False)
    with pytest.raises(EbmcalError, match="is a directory"):
        check_writable(tmp_path, "--json")
    (tmp_path / "file").write_text("")
    with pytest.raises(EbmcalError, match="is a file, not a directory"):
        check_writable(tmp_path / "file" / "x.json", "--json")


def test_a_lock_is_held_by_one_process(tmp_path):
    with locked(tmp_path):
        script = (
            f"from pathlib import Path; from ebmcal.storage import locked\nwith locked(Path({str(tmp_path)!r})): pass"
        )
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"is in use by process {os.getpid()}" in result.stderr


def test_temporary_files_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".model.abc.tmp").mkdir()
    for name in (".run.0123456789ab.tmp", ".run.mine.tmp"):
        (tmp_path / name).write_text("")
    remove_temporary_files(tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == [".run.mine.tmp", "run"]
    assert not os.listdir(tmp_path / "run")


def test_trials_and_cards(tmp_path):
    run, trial = RunDir(tmp_path), Trial("sharp-hidden", 2)
    found = RunDir.containing(run.model(trial))
    assert (found[0].root, found[1]) == (tmp_path, trial)
    assert RunDir.containing(tmp_path / "elsewhere") is None
    run.model(trial).mkdir(parents=True)
    update_card(run.model(trial), energy="hidden", calibrator={"a": 1})
    update_card(run.model(trial), calibrator=None)
    assert read_card(run.model(trial)) == {"energy": "hidden"}
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({"max_length": -5}, "max_length should be greater than 0, got -5"),
        ({"max_length": True}, "max_length should be a valid integer, got True"),
        ({"text_column": 3}, "text_column should be a valid string, got 3"),
        ({"folded_temperature": "hot"}, "folded_temperature should be a valid number, got 'hot'"),
        ([1], "content should be a valid dictionary"),
    ],
)
def test_damaged_cards_are_refused(tmp_path, card, words):
    (tmp_path / "ebmcal.json").write_text(json.dumps(card))
    with pytest.raises(EbmcalError, match=f"ebmcal.json: {words}.*Restore or delete it"):
        read_card(tmp_path)


def test_the_weights_fingerprint_changes_with_the_weights(tmp_path):
    found = []
    for value in (b"a", b"a", b"b"):
        (tmp_path / "model.safetensors").write_bytes(value * 40_000)
        found.append(weights_fingerprint(tmp_path))
    assert found[0] == found[1] != found[2]
