"""Benchmarks of tiny encoders on generated files: what is run, what is reused, what failed, and what is shown."""

import json
import random
import statistics
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

pytest.importorskip("torch", reason="benchmarks train")


import ebmcal.benchmark.runs as runs
import ebmcal.benchmark.spec as spec
import ebmcal.pipeline.cell as cells
import ebmcal.pipeline.stages as pipeline
from ebmcal.benchmark import gather, load_benchmark, paper_tables, run_benchmark, write_results
from ebmcal.benchmark.outcomes import failure_table, headline
from ebmcal.benchmark.spec import Benchmark, BenchmarkTask
from ebmcal.cli import main
from ebmcal.config import RunConfig
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.judging import Measures, judge_run
from ebmcal.recipe import resolve
from ebmcal.report import write_report
from ebmcal.runfolder import Cell
from ebmcal.tasks import TASKS

pytestmark = pytest.mark.filterwarnings("ignore:The temperature did not settle")

EXAMPLES = Path(__file__).parents[2] / "benchmarks"
HIDDEN_DIVERGES = 1e39  # more than float32 holds: the loss of `hidden` overflows, the baseline never sees it
FINISHED = {
    "tasks": ["mood", "broken"],
    "methods": ["baseline", "hidden"],
    "posthoc": ["temperature"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A file of film reviews, and a cache that the tests of this module share."""
    folder, rng = tmp_path_factory.mktemp("benchmark"), random.Random(0)
    words = {"good": ["a joy", "honest", "worth the time"], "bad": ["dull", "slow", "broken"]}
    rows = [f"the film is {rng.choice(words[label])} {i},{label}" for i in range(50) for label in words]
    (folder / "mood.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def write_config(place, encoder_folder):
    """Writes a benchmark file; the tasks "mood" and "broken" are the film reviews with settings of their own."""

    def write(name: str, **settings) -> Path:
        shared = {
            "output": str(place / name), "cache_dir": str(place / "cache"), "encoder": str(encoder_folder),
            "noise": "splice", "noise_ratio": 1,
            "max_length": 32, "steps": 2, "batch_size": 4, "eval_steps": 2, "methods": ["baseline"], "posthoc": [],
        }  # fmt: skip
        tasks = [_own_file(place, task) for task in settings.pop("tasks", ["mood"])]
        path = place / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**shared, "tasks": tasks, **settings}))
        return path

    return write


def _own_file(place: Path, task):
    own = {"mood": {"seeds": [1, 2]}, "broken": {"name": "broken", "energy_weight": HIDDEN_DIVERGES, "posthoc": []}}
    return {"train": str(place / "mood.csv"), **own[task]} if isinstance(task, str) and task in own else task


def _report_of_broken(root):
    """A report takes most of a small run; that of `broken` is looked into."""
    return write_report(root) if root.name == "broken" else (root / "report.html").write_text("report")


@pytest.fixture(scope="module")
def finished(write_config):
    """A benchmark that has been run to its end: `mood` went well, `hidden` of `broken` diverged."""
    path = write_config("finished", **FINISHED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "write_report", _report_of_broken)
        patch.setattr(pipeline, "judge_run", partial(judge_run, how=Measures(n_resamples=50)))
        return path, run_benchmark(load_benchmark(path))


@pytest.fixture
def trainings(monkeypatch):
    """The names of the cells that are trained while a test runs."""
    names, train = [], cells.train_cell

    def count(folder, cell, *rest):
        names.append(f"{folder.root.name}/{cell.name}")
        return train(folder, cell, *rest)

    monkeypatch.setattr(cells, "train_cell", count)
    return names


@pytest.fixture
def no_pictures(monkeypatch):
    """Runs without their report, which takes most of their time."""
    monkeypatch.setattr(pipeline, "write_report", lambda root: root)


def refuse(*_, **__):
    raise AssertionError("this must not be called")


# What came out


def test_outcomes_say_what_is_done_and_what_failed_and_why(finished):
    mood, broken = finished[1]
    assert mood.done == mood.task.cells
    assert not mood.has_failed
    assert broken.done == [Cell("baseline", 1)]
    assert list(broken.failed) == [Cell("hidden", 1)]
    assert "nan" in broken.failed[Cell("hidden", 1)] or "diverged" in broken.failed[Cell("hidden", 1)]
    assert headline(finished[1]) == "5 of 6 cells done, 1 failed"


def test_table_has_mean_and_spread_over_seeds_and_post_hoc_rows_from_the_same_predictions(finished):
    table = paper_tables(finished[1])[0]
    names = [row.entries[0].value for row in table.rows]
    assert names == [
        "baseline", "temperature (train)", "hidden", "hidden + temperature (train)",
        "temperature (dev)", "hidden + temperature (dev)",
    ]  # fmt: skip
    rows = [row for row in finished[1][0].document["rows"] if row["method"] == "hidden" and row["posthoc"] is None]
    values = [row["metrics"]["ece_classwise"]["value"] for row in rows]
    shown = table.column("mood:ece_classwise")[2]
    assert shown.number == pytest.approx(statistics.fmean(values))
    assert shown.spread == pytest.approx(statistics.stdev(values))
    same = {e.text() for e, name in zip(table.column("mood:accuracy"), names, strict=True) if "hidden" not in name}
    assert len(same) == 1  # a temperature moves no prediction


def test_failed_cell_is_shown_as_failed_and_has_no_average(finished):
    for table in paper_tables(finished[1]):
        ece = table.columns[-1].key.split(":")[1]
        assert [e.value for e in table.column(f"broken:{ece}")][2] == "failed"
        assert table.column(f"average:{ece}")[2].number is None
        assert table.column(f"average:{ece}")[0].number is not None
    (row,) = failure_table(finished[1]).rows
    assert [entry.value for entry in row.entries[:3]] == ["broken", "hidden", 1]


def test_results_are_written_in_every_form(finished):
    output = Path(yaml.safe_load(finished[0].read_text())["output"])
    document = json.loads((output / "benchmark.json").read_text())
    assert (document["n_cells"], document["n_done"], document["n_failed"]) == (6, 5, 1)
    broken = document["tasks"]["broken"]["cells"]
    assert broken["hidden-seed1"]["state"] == "failed"
    assert broken["hidden-seed1"]["reason"]
    assert broken["baseline-seed1"]["training"]["steps"] == 2
    assert "| hidden |" in (output / "benchmark.md").read_text()
    assert "failed" in (output / "benchmark.md").read_text()
    assert (output / "benchmark.tex").read_text().count(r"\begin{tabular}") == 2
    page = (output / "report.html").read_text()
    assert 'href="mood/report.html"' in page
    assert (output / "mood" / "report.html").exists()
    assert "ECE class-wise" in page
    assert "ECE top-label" in page


def test_report_of_a_run_names_the_failed_cell(finished):
    page = (finished[1][1].task.folder.report).read_text()
    assert "hidden, seed 1: failed:" in page


# Going on


def test_command_tries_failed_cells_again_and_nothing_else(finished, trainings, no_pictures, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(finished[0])])
    assert stopped.value.code == 1
    assert trainings == ["broken/hidden-seed1"]
    said = capsys.readouterr()
    assert "5 of 6 cells done, 1 failed" in said.out
    assert "failed" in said.out
    assert "mood (task 1 of 2): done before" in said.err


def test_finished_task_is_not_run_again(finished, monkeypatch):
    monkeypatch.setattr(runs, "run", refuse)
    plan = load_benchmark(finished[0], only=["mood"])
    again = run_benchmark(plan)
    assert again[0].document["rows"] == finished[1][0].document["rows"]
    assert again[1].failed  # of the task that was not chosen, what is known is still shown


def test_only_a_failure_of_a_chosen_task_is_an_error(finished, monkeypatch):
    monkeypatch.setattr(runs, "run", refuse)
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(finished[0]), "--only", "Mood"])
    assert stopped.value.code == 0


@pytest.mark.parametrize("change", ["method", "posthoc", "damage"])
def test_task_with_something_missing_is_not_finished(finished, tmp_path, change):
    plan = load_benchmark(finished[0], only=["mood"])
    task = plan.chosen[0]
    assert runs.is_finished(task)
    if change == "method":
        more = task.config.model_copy(update={"methods": [*task.config.methods, "scalar"]})
    elif change == "posthoc":
        more = task.config.model_copy(update={"posthoc": ["temperature", "platt"]})
    else:
        file = task.folder.predictions(Cell("hidden", 2), "test")
        whole, more = file.read_bytes(), task.config
        file.write_bytes(whole[:-1])
    try:
        assert not runs.is_finished(BenchmarkTask("mood", more, task.fingerprints))
    finally:
        if change == "damage":
            file.write_bytes(whole)


def test_interrupted_benchmark_goes_on_where_it_stopped(write_config, trainings, no_pictures, monkeypatch):
    path = write_config("interrupted", tasks=["mood", "broken"])
    train, seen = cells.train_cell, []

    def interrupted(folder, cell, *rest):
        seen.append(cell)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return train(folder, cell, *rest)

    monkeypatch.setattr(cells, "train_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(load_benchmark(path))
    assert trainings == ["mood/baseline-seed1"]
    plan = load_benchmark(path)
    assert [runs.cell_state(task, cell) for task in plan.tasks for cell in task.cells] == ["done", "to do", "to do"]

    monkeypatch.setattr(cells, "train_cell", train)
    outcomes = run_benchmark(plan)
    assert trainings == ["mood/baseline-seed1", "mood/baseline-seed2", "broken/baseline-seed1"]
    assert headline(outcomes) == "3 of 3 cells done"


def test_signal_in_a_training_stops_everything(write_config, no_pictures, monkeypatch, capsys):
    def stopped(*_):
        raise Interrupted("baseline-seed1: stopped at step 1 of 2; a checkpoint is saved.")

    monkeypatch.setattr(cells, "train_cell", stopped)
    with pytest.raises(SystemExit) as left:
        main(["benchmark", str(write_config("signal", tasks=["mood", "broken"]))])
    assert left.value.code == 130
    assert "broken (task 2 of 2)" not in capsys.readouterr().err


def test_noise_that_cannot_be_made_fails_the_methods_that_need_it(write_config, no_pictures, monkeypatch):
    def no_noise(*_):
        raise RuntimeError("the disk is\nfull")

    monkeypatch.setattr(pipeline, "make_noise", no_noise)
    path = write_config("no-noise", tasks=["broken"], methods=["baseline", "hidden", "scalar"])
    (outcome,) = run_benchmark(load_benchmark(path))
    assert outcome.done == [Cell("baseline", 1)]
    assert set(outcome.failed.values()) == {"RuntimeError: the disk is full"}
    assert len(outcome.failed) == 2
    assert "Traceback" in outcome.task.folder.log.read_text()


def test_task_that_fails_as_a_whole_does_not_stop_the_next(write_config, monkeypatch):
    ran = []

    def run(config, *_):
        ran.append(Path(config.output).name)
        if ran[-1] == "mood":
            raise EbmcalError("mood is in use by process 1.")

    monkeypatch.setattr(runs, "run", run)
    outcomes = run_benchmark(load_benchmark(write_config("whole", tasks=["mood", "broken"])))
    assert ran == ["mood", "broken"]
    assert outcomes[0].failed == dict.fromkeys(
        [Cell("baseline", 1), Cell("baseline", 2)], "mood is in use by process 1."
    )
    assert not outcomes[1].has_failed
    assert headline(outcomes) == "0 of 3 cells done, 2 failed, 1 not run"


def test_damaged_metrics_are_told(write_config):
    plan = load_benchmark(write_config("damaged"))
    plan.tasks[0].folder.root.mkdir(parents=True)
    plan.tasks[0].folder.metrics.write_text("{")
    (outcome,) = gather(plan)
    assert "metrics.json" in outcome.error
    assert outcome.has_failed
    assert not runs.is_finished(plan.tasks[0])


# The file


def test_dry_run_shows_cells_and_starts_nothing(finished, write_config, monkeypatch, capsys):
    monkeypatch.setattr(runs, "run", refuse)
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(finished[0]), "--dry-run"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert said.count("done ") == 5
    assert "failed: " in said
    assert "5 of 6 cells are done" in said
    fresh = write_config("dry")
    with pytest.raises(SystemExit):
        main(["benchmark", str(fresh), "--dry-run"])
    assert "to do" in capsys.readouterr().out
    assert not (fresh.parent / "dry").exists()


def test_mistakes_of_all_tasks_come_in_one_error_before_any_work(write_config, place, capsys):
    path = write_config(
        "wrong", encodr="x", task="rte",
        tasks=[
            "sst3", {"train": str(place / "absent.csv")}, {"task": "rte", "batch_size": 0}, "mood",
            {"task": "cola", "methods": ["hiden"]},
            {"name": "a/b", "train": "x.csv"}, {"steps": 3}, 7, {"name": "MOOD", "train": str(place / "mood.csv")},
        ],
    )  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(path)])
    said = capsys.readouterr().err
    assert stopped.value.code == 1
    assert not (place / "wrong").exists()
    for part in (
        "encodr", "Did you mean 'encoder'", "Did you mean 'hidden'", "all tasks: task belongs to one task",
        "'sst3'", "Did you mean 'sst2'", "absent.csv does not exist", "batch-size", "'a/b'", "neither task",
        "7 came", "two tasks have this name", "Where is rte?",
    ):  # fmt: skip
        assert part in said, part


def test_mistake_that_tasks_share_is_told_once(write_config):
    path = write_config("shared", tasks=["mood", "broken"], encoder="./no-such-encoder")
    with pytest.raises(EbmcalError) as told:
        load_benchmark(path)
    assert str(told.value).count("no-such-encoder has no config.json") == 1
    assert "mood, broken:" in str(told.value)


def test_model_and_data_mistakes_come_together(write_config, place):
    tasks = ["mood", {"train": str(place / "absent.csv")}]
    path = write_config(
        "both",
        tasks=tasks,
        encoder="./no-encoder",
        noise="infill:./no-lm",
        methods=["hidden"],
        ood={"news": "./no-news.csv"},
    )
    with pytest.raises(EbmcalError) as told:
        load_benchmark(path)
    for part in (
        "no-encoder has no config.json",
        "no-lm has no config.json",
        "absent.csv does not",
        "no-news.csv does",
    ):
        assert part in str(told.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "must be a list of tasks"),
        ("tasks: {rte: {}}\noutput: x", "dict came"),
        ("tasks: [rte]", "say where the runs should go"),
        ("tasks: [rte]\noutput: [1]", "must be a folder"),
        ("tasks: [{task: rte, output: y}]\noutput: x", "output is one for the whole benchmark"),
        ("tasks: [rte, {task: RTE, noise_ratio: 1}]\noutput: x", "two tasks have this name"),
        ("- rte", "must have `setting: value` lines"),
        ("tasks: [stsb]\noutput: x", "regression"),
    ],
)
def test_odd_files_are_explained(tmp_path, text, part):
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(EbmcalError, match=part.replace("[", r"\[")):
        load_benchmark(tmp_path / "b.yaml")


def test_absent_file_is_explained(tmp_path):
    with pytest.raises(EbmcalError, match="does not exist"):
        load_benchmark(tmp_path / "b.yaml")


def test_only_must_name_tasks_of_the_file(write_config):
    with pytest.raises(EbmcalError, match="Did you mean 'mood'"):
        load_benchmark(write_config("only"), only=["mod"])


def test_tasks_that_are_not_chosen_need_no_data(write_config):
    plan = load_benchmark(write_config("few", tasks=["mood", {"task": "rte", "data_dir": "absent"}]), only=["mood"])
    assert [task.is_chosen for task in plan.tasks] == [True, False]


def test_own_settings_stand_over_shared_ones(write_config, place, tmp_path):
    path = write_config("own", data_dir=str(tmp_path), tasks=[{"train": str(place / "mood.csv"), "epochs": 3}])
    task = load_benchmark(path, output=tmp_path / "elsewhere").tasks[0]
    assert task.config.data_dir is None
    assert task.config.steps == 3 * 80 // 4
    assert task.folder.root == tmp_path / "elsewhere" / "mood"


def test_data_that_changed_under_a_finished_run_is_refused(finished, place):
    file, before = place / "mood.csv", (place / "mood.csv").read_text()
    file.write_text(before + "a new row,good\n")
    try:
        with pytest.raises(EbmcalError, match="have changed since"):
            load_benchmark(finished[0])
    finally:
        file.write_text(before)


def test_folder_of_another_config_is_refused(finished, write_config):
    path = write_config("other", **FINISHED, steps=5, output=str(Path(finished[0]).with_suffix("")))
    with pytest.raises(EbmcalError, match=r"belongs to another config .*steps: there 2, now 5"):
        load_benchmark(path)


# Tables


def _synthetic(tmp_path, figures: dict[str, dict[tuple[str, int], float | None]]) -> Benchmark:
    """Run folders with these class-wise errors, None for a failure: task → (method, seed) → value."""
    tasks = []
    for name, found in figures.items():
        config = RunConfig(
            output=tmp_path / name, task=name, methods=list(dict.fromkeys(m for m, _ in found)),
            seeds=sorted({s for _, s in found}),
        )  # fmt: skip
        tasks.append(BenchmarkTask(name, config))
        rows = [
            {"method": m, "posthoc": None, "seed": s, "test_set": "test", **_figures(v)} for (m, s), v in found.items()
        ]
        config.output.mkdir(parents=True)
        tasks[-1].folder.metrics.write_text(json.dumps({"task": name, "rows": rows}))
    return Benchmark(tmp_path, tuple(tasks))


def _figures(value: float | None) -> dict:
    if value is None:
        return {"error": "diverged"}
    return {
        "metrics": {"accuracy": 1 - value, "matthews": 1 - value, "ece_classwise": value, "ece_top_label": 2 * value}
    }


def test_average_has_its_spread_over_seeds_and_the_published_numbers_beside(tmp_path):
    plan = _synthetic(
        tmp_path,
        {
            "rte": {("baseline", 1): 0.10, ("baseline", 2): 0.30, ("hidden", 1): 0.1, ("hidden", 2): 0.1},
            "cola": {("baseline", 1): 0.20, ("baseline", 2): 0.20, ("hidden", 1): 0.1, ("hidden", 2): None},
        },
    )
    table, top_label = paper_tables(gather(plan))
    average = table.column("average:ece_classwise")
    assert average[0].number == pytest.approx(0.2)
    assert average[0].spread == pytest.approx(statistics.stdev([0.15, 0.25]))
    assert top_label.column("average:ece_top_label")[0].spread == pytest.approx(2 * average[0].spread)
    names = [row.entries[0].value for row in table.rows]
    assert table.column("RTE:ece_classwise")[names.index("hidden, published")].value == 0.148
    assert table.column("CoLA:matthews")[names.index("baseline, published")].value == 0.539
    assert "cola, hidden: 1 of 2 seeds failed and are left out." in table.notes
    assert [c.key for c in top_label.columns][1:] == [f"{t}:ece_top_label" for t in ("RTE", "CoLA", "average")]


def test_nothing_run_gives_no_table_but_files(tmp_path):
    plan = Benchmark(tmp_path, (BenchmarkTask("rte", RunConfig(output=tmp_path / "rte", task="rte")),))
    outcomes = gather(plan)
    assert paper_tables(outcomes) == []
    write_results(tmp_path, outcomes)
    assert (
        json.loads((tmp_path / "benchmark.json").read_text())["tasks"]["rte"]["cells"]["baseline-seed1"]["state"]
        == "not run"
    )
    assert "No model has been evaluated yet" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("width", [20, 60, 80, 120, 500])
def test_folded_tables_fit_the_terminal_and_lose_nothing(tmp_path, width):
    from rich.console import Console
    from rich.measure import Measurement

    from ebmcal.tables import split_wide, to_rich

    figures = {("baseline", 1): 0.1, ("baseline", 2): 0.2, ("hidden", 1): 0.3, ("hidden", 2): 0.1}
    table = paper_tables(gather(_synthetic(tmp_path, dict.fromkeys(("rte", "cola", "sst2", "wnli"), figures))))[0]
    parts = split_wide(table, width)
    assert [c.key for part in parts for c in part.columns[1:]] == [c.key for c in table.columns[1:]]
    assert [part.notes for part in parts if part.notes] == [table.notes]
    console = Console(width=1000)
    drawn = [to_rich(part) for part in parts]
    for part, rich_table in zip(parts, drawn, strict=True):
        rich_table.title = rich_table.caption = None
        needed = Measurement.get(console, console.options, rich_table).maximum
        assert needed <= width or len(part.columns) == 3  # one test set is never split


# The examples


@pytest.fixture
def no_data(monkeypatch):
    """Settings are resolved as they would be with data of that size; no data and no models are looked at."""

    def of(n_train: int, hidden_size: int) -> None:
        def prepare(config, *_):
            return resolve(config, n_train, hidden_size), SimpleNamespace(splits={})

        monkeypatch.setattr(pipeline, "prepare", prepare)
        monkeypatch.setattr(spec, "_looks", lambda config: [])

    return of


def test_example_runs_all_of_glue_with_the_published_settings(no_data):
    no_data(10_000, 768)
    plan = load_benchmark(EXAMPLES / "glue.yaml")
    assert [task.name for task in plan.tasks] == [name for name, task in TASKS.items() if task.published]
    for task in plan.tasks:
        published = TASKS[task.name].published
        assert (task.config.steps, task.config.batch_size) == (published.steps, published.batch_size)
        assert (task.config.warmup_steps, task.config.noise_ratio) == (published.warmup_steps, published.noise_ratio)
        assert (task.config.learning_rate, task.config.energy_weight) == (published.learning_rate, 1.0)


def test_small_example_is_small(no_data):
    no_data(1000, 384)
    plan = load_benchmark(EXAMPLES / "glue-small.yaml")
    assert all(task.config.steps <= 300 and task.config.encoder == "minilm" for task in plan.tasks)
