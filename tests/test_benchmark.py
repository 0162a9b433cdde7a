"""Benchmarks: what is checked, what is run and skipped, what failed, and what is written. Runs are synthetic."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

pytest.importorskip("torch", reason="benchmarks train models")

from ebmcal.benchmark import PUBLISHED, load_benchmark, paper_table, published_set
from ebmcal.config import dump_config
from ebmcal.data.tasks import TASKS
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.evaluation import evaluate_trials
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json, write_text
from synthetic_run import BASELINE, HIDDEN, best, column, make_evaluation, make_predictions, make_results, two_methods

EXAMPLES = Path(__file__).parents[1] / "benchmarks"
SHARPNESS = {"baseline": 3.0, "hidden": 1.3, "scalar": 1.5}


@pytest.fixture
def place(tmp_path):
    """A directory with a file of film reviews."""
    rng = np.random.default_rng(0)
    words = {"good": ["a joy", "honest", "worth the time"], "bad": ["dull", "slow", "broken"]}
    rows = [f"the film is {rng.choice(words[label])} {i},{label}" for i in range(50) for label in words]
    (tmp_path / "mood.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return tmp_path


@pytest.fixture
def write_plan(place, encoder_dir):
    """Writes a benchmark file; "mood" and "other" are tasks with the film reviews."""

    def write(name="plan", **settings):
        own = {"mood": {"train": str(place / "mood.csv"), "seeds": [1, 2]}}
        own["other"] = {"name": "other", "train": str(place / "mood.csv")}
        tasks = [own.get(task, task) if isinstance(task, str) else task for task in settings.pop("tasks", ["mood"])]
        shared = {"output": str(place / name), "cache_dir": str(place / "cache"), "encoder": str(encoder_dir)}
        shared |= {"max_length": 32, "steps": 2, "methods": ["baseline"], "posthoc": ["temperature"]}
        path = place / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**shared, "tasks": tasks, **settings}))
        return path

    return write


@pytest.fixture
def runs(monkeypatch):
    """Replaces runs by synthetic ones and records their trials; trials in `runs.broken` fail."""

    class Runs(list):
        broken = frozenset()  # (task, trial)

    made = Runs()

    def start_run(config, in_memory=None, *, progress=None):
        directory = RunDir(config.output)
        for trial in (Trial(method, seed) for seed in config.seeds for method in config.methods):
            if (directory.root.name, trial.name) in made.broken:
                raise EbmcalError(f"Training diverged by step 7: {trial.name}.")
            made.append(f"{directory.root.name}/{trial.name}")
            directory.trial(trial).mkdir(parents=True, exist_ok=True)
        finished = [Trial.parse(path.name) for path in sorted((directory.root / "trials").iterdir())]
        write_text(directory.config, dump_config(config))
        write_json(directory.results, evaluate(finished).to_json() | document(finished))
        write_text(directory.report, "report")

    monkeypatch.setattr("ebmcal.runs.start_run", start_run)
    return made


def evaluate(trials):
    predictions = {
        trial: {
            "calibration": make_predictions(200, SHARPNESS[trial.method], trial.seed + 50),
            "test": make_predictions(200, SHARPNESS[trial.method], trial.seed),
        }
        for trial in trials
    }
    return evaluate_trials(predictions, posthoc=["temperature"], n_resamples=20)


def document(trials):
    training = {trial.name: {"seconds": 12.5} for trial in trials}
    return {"training": training, "audit": {"splits": {"train": {"rows": 80}}}, "task_metric": "accuracy"}


@pytest.fixture
def run(command):
    """Run the benchmark of a file; returns what it prints, with single spaces."""
    return lambda path, *options, code=0: " ".join(command("benchmark", path, *options, code=code).split())


def test_all_results_are_written_in_every_format(write_plan, runs, run, place):
    shown = run(write_plan(tasks=["mood", "other"], methods=["baseline", "hidden"]))
    assert "mood: 4 of 4 trials done" in shown
    assert "hidden + temperature (dev)" in shown
    written = (place / "plan" / "benchmark.md").read_text()
    assert "Performance and class-wise ECE" in written
    assert "Performance and top-label ECE" in written
    assert r"\begin{table*}" in (place / "plan" / "benchmark.tex").read_text()
    frame = pd.read_csv(place / "plan" / "results.csv")
    assert {"task", "method", "seed", "calibrator", "metric", "value", "low", "high"} <= set(frame)
    assert set(frame["task"]) == {"mood", "other"}


def test_only_selected_tasks_are_run_and_the_others_are_kept(write_plan, runs, run, place):
    run(write_plan(tasks=["mood", "other"]))
    assert runs == ["mood/baseline-seed1", "mood/baseline-seed2", "other/baseline-seed1"]
    runs.clear()
    run(write_plan(tasks=["mood", "other"], methods=["baseline", "hidden"]), "--only", "OTHER")
    assert runs == ["other/baseline-seed1", "other/hidden-seed1"]
    assert "mood" in (place / "plan" / "benchmark.md").read_text()


def test_a_failed_trial_does_not_stop_the_others(write_plan, runs, run):
    runs.broken = {("mood", "hidden-seed1")}
    path = write_plan(tasks=["mood", "other"], methods=["hidden", "baseline"])
    shown = run(path, code=1)
    assert "mood: 3 of 4 trials done other: 2 of 2 trials done" in shown
    assert "mood, hidden-seed1 failed: Training diverged by step 7: hidden-seed1." in shown
    run(path, "--only", "other")  # only failures of selected tasks are errors
    runs.broken = set()
    run(path)


def test_a_signal_stops_everything(write_plan, monkeypatch, run):
    def start_run(*_, **__):
        raise Interrupted("baseline-seed1: stopped at step 1 of 2; a checkpoint is saved.")

    monkeypatch.setattr("ebmcal.runs.start_run", start_run)
    assert "task 2 of 2" not in run(write_plan(tasks=["mood", "other"]), code=130)


def test_corrupt_results_are_replaced_or_named(write_plan, runs, run, place):
    path, results = write_plan(), RunDir(place / "plan" / "mood").results
    write_text(results, "{")
    assert str(results) in run(path, "--dry-run", code=1)
    run(path)


def test_dry_run_starts_nothing(write_plan, runs, run, place):
    assert "mood: 0 of 2 trials done" in run(write_plan(), "--dry-run")
    assert runs == []
    assert not (place / "plan").exists()


def test_published_numbers_are_those_of_the_paper():
    assert PUBLISHED["baseline"]["rte"] == (0.724, 0.279)
    assert PUBLISHED["sharp-hidden"]["mnli_mm"] == (0.872, 0.031)
    for method, sets in PUBLISHED.items():
        for index in range(2):
            mean = np.mean([pair[index] for name, pair in sets.items() if name != "average"])
            assert mean == pytest.approx(sets["average"][index], abs=0.0016), method
    assert [published_set(*x) for x in (("CoLA",), ("average",), ("rte", "ood_news"))] == ["cola", None, None]


def test_paper_table_groups_tasks_and_does_not_rank_calibrated_rows():
    mnli = make_results({("baseline", 1, None): BASELINE, ("hidden", 1, None): HIDDEN})
    mnli += make_results({("hidden", 1, None): HIDDEN}, test_set="test_mismatched")
    table = paper_table([two_methods(), make_evaluation(mnli, task="mnli")])
    assert table.columns[1:4] == [("RTE", "acc."), ("RTE", "ECE"), ("MNLI", "acc.")]
    names = ["baseline", "temperature (train)", "hidden", "temperature (dev)", "baseline ensemble"]
    assert column(table, "Method")[:5] == names
    assert best(table, ("RTE", "ECE")) == ["hidden"], "temperature (dev) and the ensemble are lower and not ranked"
    averages = column(table, ("Average", "perf."))
    assert averages[2] == f"{(0.83 + 0.82 + 0.82) / 3:.3f}"
    assert averages[0] == "–", "no average over fewer test sets"


def test_paper_table_has_published_rows_and_deviations():
    wnli = make_evaluation(two_methods().results.to_dict("records"), task="wnli")
    table = paper_table([two_methods(), wnli])
    rows = {row[0].text: row for row in table.cells()}
    assert rows["baseline, published"][-1].text == f"{(0.279 + 0.058) / 2:.3f}"
    single = np.std([0.05, 0.03], ddof=1)
    assert rows["hidden"][2].extra == f"± {single:.3f}"
    assert rows["hidden"][-1].extra == f"± {single / np.sqrt(2):.3f}", "independent tasks"
    top_label = paper_table([two_methods()], ece="ece_top_label")
    assert column(top_label, ("RTE", "ECE"))[0] == "0.120"
    assert "top-label" in top_label.notes[0]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_wide_tables_are_split_at_groups_and_lose_nothing(width):
    from rich.console import Console

    records = two_methods().results.to_dict("records")
    evaluations = [make_evaluation(records, task=task) for task in ("rte", "cola", "sst2", "wnli")]
    console = Console(width=width)
    with console.capture() as captured:
        console.print(paper_table(evaluations))
    shown = captured.get()
    assert max(map(len, shown.splitlines())) <= width
    assert all(name in shown for name in ("RTE", "CoLA", "SST-2", "WNLI", "Average"))


# The file


def test_the_mistakes_of_all_tasks_are_reported_at_once(write_plan, place, run):
    path = write_plan(
        "wrong",
        tasks=[
            "sst3", {"train": str(place / "absent.csv")}, {"task": "rte", "batch_size": 0}, "mood",
            {"task": "cola", "methods": ["hiden"], "data_dir": str(place)}, {"name": "a/b", "train": "x.csv"},
            {"encodr": 3, "train": str(place / "mood.csv"), "name": "third"}, {"steps": 3}, 7,
            {"name": "MOOD", "train": str(place / "mood.csv")}, {"task": "rte", "output": "y"}, "stsb", "sst3",
        ],
    )  # fmt: skip
    shown = run(path, code=1)
    assert not (place / "wrong").exists()
    for part in (
        "Did you mean 'encoder'", "Did you mean 'hidden'", "'sst3'", "Did you mean 'sst2'", "absent.csv", "batch-size",
        "'a/b'", "got neither", "got 7", "two tasks are called MOOD", "output is set once", "regression",
        "task 1, 13: ",
    ):  # fmt: skip
        assert part in shown, part


def test_what_would_stop_a_run_is_reported_before_any_run(write_plan):
    with pytest.raises(EbmcalError, match="warmup_steps is 10, more than the 2 training steps"):
        load_benchmark(write_plan(warmup_steps=10))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("output: x", "expected a list of tasks"),
        ("tasks: {rte: {}}\noutput: x", "got dict"),
        ("tasks: [rte]", "write `output: runs/NAME`"),
        ("tasks: [rte]\noutput: [1]", "expected a directory"),
        ("tasks: [sst2]\noutput: x\ntask: rte", "task belongs to one task"),
        ("- rte", "must contain `setting: value` lines"),
    ],
)
def test_odd_files_are_explained(tmp_path, text, part):
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(EbmcalError, match=part.replace("[", r"\[")):
        load_benchmark(tmp_path / "b.yaml")
    with pytest.raises(EbmcalError, match="does not exist"):
        load_benchmark(tmp_path / "absent.yaml")


def test_only_names_tasks_of_the_file_and_the_others_need_no_data(write_plan):
    with pytest.raises(EbmcalError, match="Did you mean 'mood'"):
        load_benchmark(write_plan(), only=["mod"])
    plan = load_benchmark(write_plan(tasks=["mood", {"task": "rte", "data_dir": "absent"}]), only=["mood"])
    assert (plan.selected, list(plan.runs)) == (["mood"], ["mood", "rte"])


def test_settings_of_a_task_override_shared_ones(write_plan, place, tmp_path):
    own = {"train": str(place / "mood.csv"), "epochs": 3, "steps": None}
    plan = load_benchmark(write_plan(calibration="holdout", tasks=[own]), output=tmp_path / "elsewhere")
    config = plan.runs["mood"]
    assert (config.epochs, config.steps, config.calibration) == (3, None, "holdout")
    assert config.output == tmp_path / "elsewhere" / "mood"


def test_example_runs_all_tasks_of_the_paper_with_published_settings(monkeypatch):
    monkeypatch.setattr("ebmcal.pipeline.prepare", lambda config, reporter: None)
    runs = load_benchmark(EXAMPLES / "glue.yaml").runs
    assert list(runs) == [name for name, task in TASKS.items() if task.published]
    assert all(config.recipe == "published" for config in runs.values())
    assert {"baseline", "poscal", "scalar", "hidden", "sharp-hidden"} <= set(runs["rte"].methods)


@pytest.mark.slow
def test_a_real_benchmark_of_a_tiny_encoder(write_plan, place, run):
    path = write_plan(methods=["baseline", "hidden"], noise="splice", calibration="holdout", batch_size=4)
    assert "mood: 4 of 4 trials done" in run(path)
    assert "hidden" in (place / "plan" / "benchmark.md").read_text()
