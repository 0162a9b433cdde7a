"""The command line: overview, help, exit codes, warnings, errors without tracebacks, `ebmcal run`."""

import os
import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

from ebmcal import EbmcalError, __version__
from ebmcal.cli import COMMANDS, build_app, main
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


def test_help_is_complete():
    """The whole docstring is shown, not only its first line."""
    assert "Exit codes: 0 done" in " ".join(help_of("predict").split())
    assert "Exit codes: 0 no alarm" in " ".join(help_of("monitor").split())


def test_the_help_of_run_fits_one_screen_and_help_all_has_the_rest():
    short, full = help_of("run"), call("run", "--help-all").stdout
    assert len(short.splitlines()) <= 45
    assert 15 <= short.count("\n  --") <= 28
    assert "--train" in short
    assert "poscal" not in short
    assert "poscal_weight" in full


#: The commands that write files named by the user.
OVERWRITING = ("predict", "calibrate", "abstain", "evaluate", "report", "monitor", "robustness", "export")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", ["--text-column", "--text-pair-column", "--label-column", "--id-column", "--encoding", "--output"]),
        ("predict", ["--text-column", "--text-pair-column", "--label-column", "--id-column", "--encoding", "--output"]),
        *((name, ["--overwrite"]) for name in OVERWRITING),
        ("calibrate", ["--predictions", "--data", "--label-column", "--output", "--normalize"]),
        ("abstain", ["--predictions", "--data", "--label-column", "--output", "--normalize"]),
        ("evaluate", ["--json", "--report", "--normalize"]),
        ("monitor", ["--json", "--report", "--normalize"]),
        ("robustness", ["--data", "--text-column", "--text-pair-column", "--label-column", "--json", "--report"]),
        ("export", ["--data", "--text-column", "--text-pair-column", "--label-column", "--overwrite"]),
        ("noise generate", ["--engine", "--workers", "--ray-address", "--text-column"]),
    ],
)
def test_the_same_thing_has_the_same_option_everywhere(command, options):
    shown = help_of(*command.split())
    assert [option for option in options if f"{option} " not in shown] == []


@pytest.mark.parametrize(
    "command", ["predict", "serve", "export", "push", "calibrate", "abstain", "monitor", "robustness"]
)
def test_commands_for_models_take_run_directories(command):
    assert "run directory" in " ".join(help_of(command).split())


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


def test_warnings_are_plain_lines_in_every_command(monkeypatch, capsys):
    def warn(_):
        for text in ("few rows", "few rows"):
            warnings.warn(text, UserWarning, stacklevel=1)
        warnings.warn("not for users", DeprecationWarning, stacklevel=1)
        raise EbmcalError("stop here")

    monkeypatch.setattr("ebmcal.data.tasks.find_task", warn)
    with pytest.raises(SystemExit):
        main(["tasks", "rte"])
    assert capsys.readouterr().err.splitlines() == ["Warning: few rows", "Error: stop here"]


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
