"""A run folder that version 0.1.0 wrote (two methods, six steps, noise of its `tiny`): opened, or refused by name."""

import io
import re
import shutil
import tarfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import ebmcal
from ebmcal.cli import main

OLD = Path(__file__).with_name("run-of-0.1.tar.xz")  # without its report and cache
MODEL, ROWS = "run/checkpoints/hidden-seed1/model", "run/predictions/hidden-seed1"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory, encoder_folder):
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(OLD) as archive:
        archive.extractall(folder, filter="data")
    shutil.copytree(encoder_folder, folder / "encoder")
    return folder


@pytest.fixture
def place(unpacked, tmp_path, monkeypatch):
    shutil.copytree(unpacked, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def call(words):
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(words.split())
    return ended.value.code, " ".join(said.getvalue().split())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("report run", 0, "Wrote run/report.html"),
        ("noise show run", 0, "made by ebmcal 0.1.0, which did not measure"),
        (f"predict {MODEL} moods.csv -o out.csv", 0, "120 rows"),
        (f"evaluate run/predictions/baseline-seed1/test.parquet {ROWS}/test.parquet --resamples 20", 0, "accuracy"),
        (f"calibrate {MODEL} --on {ROWS}/calibration.parquet", 0, "Stored as"),
        (f"decide {MODEL} --on {ROWS}/calibration.parquet --max-error 0.9", 0, "Stored as"),
        ("run --config run/config.yaml", 1, "'tiny' was built into ebmcal 0.1"),
        ("train --config run/config.yaml --seeds 2", 1, "'tiny' was built into ebmcal 0.1"),
        ("noise sample --config run/config.yaml", 1, "'tiny' was built into ebmcal 0.1"),
    ],
)
def test_every_command_opens_it_or_names_its_version(place, words, code, said):
    ended, output = call(words)
    assert said in output
    assert ended == code, output
    assert not re.search("damaged|Traceback", output)


@pytest.mark.filterwarnings("ignore")
def test_its_finished_models_stay_when_a_method_is_asked_for(place):
    before = Path(MODEL, "model.safetensors").read_bytes()
    ended, output = call("run --config run/config.yaml --methods baseline")
    assert ended == 0, output
    assert "damaged" not in output
    run = ebmcal.open_run("run")
    assert {row["method"] for row in run.results} == {"baseline", "hidden"}
    assert Path(MODEL, "model.safetensors").read_bytes() == before
