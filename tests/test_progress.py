"""Progress bars on terminals and in notebooks; a log in every case."""

import pytest

from ebmcal.progress import Console, make_reporter


@pytest.mark.parametrize(("terminal", "notebook"), [(True, False), (False, True), (False, False)])
def test_bars_are_shown_on_terminals_and_in_notebooks(monkeypatch, terminal, notebook):
    monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)
    assert isinstance(make_reporter(None), Console) == (terminal or notebook)
    assert not isinstance(make_reporter(False), Console)


@pytest.mark.parametrize("progress", [None, False, True])
def test_every_message_and_stage_is_in_the_log(progress, tmp_path, capsys):
    reporter = make_reporter(progress, tmp_path / "run" / "log.txt")
    reporter.info("data: 90 rows")
    with reporter.stage("hidden-seed1", 10) as advance:
        advance(10, "loss 0.1")
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert [line[20:] for line in lines] == ["data: 90 rows", "hidden-seed1: started", "hidden-seed1: finished"]
    assert ("90 rows" in capsys.readouterr().err) == bool(progress)


def test_other_processes_of_a_torchrun_are_silent(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    make_reporter(True, tmp_path / "log.txt").info("twice")
    assert not (tmp_path / "log.txt").exists()
