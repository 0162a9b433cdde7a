"""The command line: overview, help, exit codes, warnings, errors without tracebacks, `ebmcal run`."""

import os
import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

from ebmcal import EbmcalError, __version__
from ebmcal.cli import COMMANDS, build_app
from small_runs import rows, write_csv


def call(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ebmcal", *map(str, arguments)], capture_output=True, text=True, check=False,
        env=os.environ | {"COLUMNS": "100"} | environment,
    )  # fmt: skip


def help_of(*words):
    result = CliRunner().invoke(build_app(" ".join(words)), [*words, "--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_overview_lists_every_command():
    overview = help_of()
    for name, command in COMMANDS.items():
        assert f"  {name.split()[0]} " in overview
        assert command.panel in overview


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    assert "--help" in help_of(*name.split())


def test_the_help_of_run_fits_one_screen_and_help_all_has_the_rest():
    short, full = help_of("run"), call("run", "--help-all").stdout
    assert len(short.splitlines()) <= 45
    assert 15 <= short.count("\n  --") <= 28
    assert "--train" in short
    assert "poscal" not in short
    assert "poscal_weight" in full


def test_exit_codes_and_messages(tmp_path):
    wrong_usage = call("run", "--no-such-option")
    assert wrong_usage.returncode == 2
    missing = call("run", "--train", tmp_path / "no.csv", "--output", tmp_path / "run")
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    first, *others = missing.stderr.splitlines()
    assert first == f"ebmcal {__version__}: {tmp_path / 'no.csv'} to {tmp_path / 'run'}"  # before torch is imported
    assert "no.csv" in " ".join(others)
    assert call("--version").stdout.startswith("ebmcal 0.2")


def test_warnings_are_plain_lines_in_every_command(monkeypatch, command):
    def warn(_):
        for text in ("few rows", "few rows"):
            warnings.warn(text, UserWarning, stacklevel=1)
        warnings.warn("not for users", DeprecationWarning, stacklevel=1)
        raise EbmcalError("stop here")

    monkeypatch.setattr("ebmcal.data.tasks.find_task", warn)
    assert command("tasks", "rte", code=1).splitlines() == ["Warning: few rows", "Error: stop here"]


def test_run_on_a_csv_file(tmp_path, encoder_dir):
    train = write_csv(tmp_path / "mine.csv", [*rows(60), ("a film", "god")])
    command = [
        "run", "--train", train, "--encoder", encoder_dir, "--methods", "baseline", "--batch-size", 8, "--folds", 2,
        "--set", "steps=4", "--set", "precision=fp32", "--max-length", 32, "--output", tmp_path / "run",
    ]  # fmt: skip
    wrong = call(*command, "--merge-labels", "gud=good")
    assert wrong.returncode == 1
    assert "Unknown label 'gud'. Did you mean 'god' or 'good'?" in " ".join(wrong.stderr.split())
    result = call(*command, "--merge-labels", "god=good")
    assert result.returncode == 0, result.stderr
    assert "1 row with the label 'god': relabelled 'good' (line 62 of mine.csv)" in " ".join(result.stderr.split())
    assert max(len(line) for line in result.stdout.splitlines() if "report.html" not in line) <= 100
    assert "baseline" in result.stdout
    printed = " ".join(result.stdout.split())
    assert "Wrong labels also make the fitted temperature too high. See 'Label issues' in the report" in printed
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_file_without_an_option_is_probably_the_training_file(command):
    assert "Did you mean --train tickets.csv?" in command("run", "tickets.csv", code=2)


def test_set_refuses_nonsense(command):
    assert "KEY=VALUE" in command("run", "--train", "x.csv", "--output", "never", "--set", "nonsense", code=1)


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m ebmcal tasks --json | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
