"""The table of tasks: contract of every entry, spelling of names, the published settings, the command."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from ebmcal.cli.tasks import tasks as tasks_command
from ebmcal.errors import EbmcalError
from ebmcal.tasks import TASKS, find_task

GLUE = ["sst2", "mnli", "qnli", "qqp", "mrpc", "cola", "rte", "wnli"]


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_every_task_is_complete(task):
    assert TASKS[task.name] is task
    assert len(set(task.label_names)) == len(task.label_names) >= 2
    assert task.metric in ("accuracy", "matthews")
    assert (task.pair_column is None) == (task.hub.pair_column is None) == (not task.is_pair)
    assert set(task.files) <= set(task.hub.splits)
    if task.header:
        assert {task.text_column, task.label_column} <= set(task.header)
    hash(task.published)


def test_the_eight_glue_tasks_have_published_settings_and_files():
    assert list(TASKS) == [*GLUE, "rotten-tomatoes"]
    for name in GLUE:
        task = TASKS[name]
        assert task.published.noise_ratio == 8
        assert {"train", "dev"} <= set(task.files)
    assert [TASKS[n].published.steps for n in GLUE] == [5233, 30968, 8278, 28318, 2296, 5536, 2036, 250]
    assert [TASKS[n].published.warmup_steps for n in GLUE] == [314, 1858, 496, 7079, 137, 320, 122, 10]
    assert [TASKS[n].published.batch_size for n in GLUE] == [32] * 4 + [16] * 4
    assert [TASKS[n].published.noise_lm_epochs for n in GLUE] == [4, 4, 4, 4, 4, 8, 8, 16]
    slow = [n for n in GLUE if TASKS[n].published.learning_rate == 1e-5]
    assert slow == ["mrpc", "cola", "wnli"]


@pytest.mark.parametrize(
    ("spelt", "name"),
    [("SST-2", "sst2"), ("sst_2", "sst2"), ("MNLI", "mnli"), ("CoLA", "cola"), ("rotten_tomatoes", "rotten-tomatoes")],
)
def test_names_may_be_spelt_as_people_spell_them(spelt, name):
    assert find_task(spelt).name == name


@pytest.mark.parametrize("name", ["STS-B", "stsb", "sts_b"])
def test_regression_is_refused_with_the_reason(name):
    with pytest.raises(EbmcalError, match=r"regression.*no classes"):
        find_task(name)


def test_an_unknown_task_gets_close_matches():
    with pytest.raises(EbmcalError, match=r"Did you mean .*'mnli'"):
        find_task("mnlii")
    with pytest.raises(EbmcalError, match="Known: sst2, mnli"):
        find_task("???")


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(tasks_command)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_command_shows_all_tasks_or_one():
    assert all(name in run() for name in TASKS)
    shown = run("MRPC")
    assert "'#1 String'" in shown
    assert "1 = equivalent" in shown
    assert "2296" in shown


def test_the_command_prints_json():
    listed = json.loads(run("--json"))
    assert [entry["name"] for entry in listed] == list(TASKS)
    assert json.loads(run("cola", "--json"))[0]["metric"] == "matthews"


def test_tasks_and_data_need_no_torch():
    code = "import sys, ebmcal.tasks, ebmcal.data, ebmcal.cli.tasks; print([m for m in sys.modules if m in BAD])"
    code = code.replace("BAD", "('torch', 'transformers', 'datasets', 'pandas', 'sklearn')")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
