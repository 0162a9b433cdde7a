"""The command line: overview, help, exit codes, errors without tracebacks, `ebmcal run`."""

import os
import subprocess
import sys

import pytest

from ebmcal.cli import COMMANDS, build_app, main
from small_runs import rows, write_csv


def call(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ebmcal", *map(str, arguments)], capture_output=True, text=True, check=False,
        env=os.environ | {"COLUMNS": "100"} | environment,
    )  # fmt: skip


def test_the_overview_lists_every_command():
    result = call("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert name.split()[0] in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    from typer.testing import CliRunner

    result = CliRunner().invoke(build_app(name), [*name.split(), "--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "--help" in result.output


def test_the_help_of_run_fits_one_screen_and_help_all_has_the_rest():
    short, full = call("run", "--help").stdout, call("run", "--help-all").stdout
    assert len(short.splitlines()) <= 60
    assert "--train" in short
    assert "poscal" not in short
    assert "poscal_weight" in full


def test_exit_codes_and_messages(tmp_path):
    wrong_usage = call("run", "--no-such-option")
    assert wrong_usage.returncode == 2
    missing = call("run", "--train", tmp_path / "no.csv", "--output", tmp_path / "run")
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    assert "no.csv" in missing.stderr
    assert call("--version").stdout.startswith("ebmcal 0.2")


def test_run_on_a_csv_file(tmp_path, encoder_dir):
    train = write_csv(tmp_path / "mine.csv", rows(60))
    result = call(
        "run", "--train", train, "--encoder", encoder_dir, "--methods", "baseline", "--batch-size", 8, "--folds", 2,
        "--set", "steps=4", "--set", "precision=fp32", "--max-length", 32, "--output", tmp_path / "run",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines() if "report.html" not in line) <= 100
    assert "baseline" in result.stdout
    assert (tmp_path / "run" / "report.html").is_file()


def test_set_takes_yaml_values_and_refuses_nonsense(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "--train", "x.csv", "--output", "/tmp/never", "--set", "nonsense"])
    assert stop.value.code == 1
    assert "KEY=VALUE" in capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m ebmcal tasks --json | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
