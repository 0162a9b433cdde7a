"""Benchmarks: what is checked, what is run and skipped, what failed, and what is written. Runs are synthetic."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

pytest.importorskip("torch", reason="benchmarks train models")

from ebmcal.benchmark import (
    PUBLISHED,
    Benchmark,
    BenchmarkTask,
    across_tasks,
    failure_table,
    gather,
    headline,
    load_benchmark,
    paper_table,
    paper_tables,
    published_set,
    results_frame,
    run_benchmark,
    write_results,
)
from ebmcal.cli import main
from ebmcal.config import RunConfig, dump_config, load_config
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


def test_all_results_are_written_in_every_format(write_plan, runs, place):
    plan = load_benchmark(write_plan(tasks=["mood", "other"], methods=["baseline", "hidden"]))
    outcomes = run_benchmark(plan)
    assert headline(outcomes) == "6 of 6 trials done"
    table = paper_tables(outcomes)[0]
    assert table.columns[:3] == ["Method", ("mood", "acc."), ("mood", "ECE")]
    names = [row[0].text for row in table.cells()]
    assert names == ["baseline", "hidden", "temperature (dev)", "hidden + temperature (dev)"]
    written = json.loads((place / "plan" / "benchmark.json").read_text())
    assert written["tasks"]["mood"]["trials"]["hidden-seed2"] == "done"
    assert {test["n_tasks"] for test in written["across_tasks"]} == {2}
    assert "Performance and class-wise ECE" in (place / "plan" / "benchmark.md").read_text()
    assert r"\begin{table*}" in (place / "plan" / "benchmark.tex").read_text()
    page = (place / "plan" / "report.html").read_text()
    assert 'href="mood/report.html"' in page
    assert "Over all tasks" in page
    frame = pd.read_csv(place / "plan" / "results.csv")
    assert len(frame) == 6 * 2
    assert frame["seconds"].eq(12.5).all()
    assert frame["n_train"].eq(80).all()
    assert {"task", "method", "seed", "calibrator", "encoder", "accuracy", "nll"} <= set(frame)


def test_only_selected_tasks_are_run_and_the_others_are_kept(write_plan, runs):
    path = write_plan(tasks=["mood", "other"])
    run_benchmark(load_benchmark(path))
    assert runs == ["mood/baseline-seed1", "mood/baseline-seed2", "other/baseline-seed1"]
    runs.clear()
    more = write_plan(tasks=["mood", "other"], methods=["baseline", "hidden"])
    outcomes = run_benchmark(load_benchmark(more, only=["OTHER"]))
    assert runs == ["other/baseline-seed1", "other/hidden-seed1"]
    assert [len(outcome.done) for outcome in outcomes] == [2, 2]


def test_a_failed_trial_does_not_stop_the_others(write_plan, runs, place, capsys):
    runs.broken = {("mood", "hidden-seed1")}
    path = write_plan(tasks=["mood", "other"], methods=["hidden", "baseline"])
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(path)])
    assert stopped.value.code == 1
    shown = capsys.readouterr()
    assert "5 of 6 trials done, 1 failed" in shown.out
    assert "Training diverged by step 7: hidden-seed1." in " ".join(shown.out.split())
    outcomes = gather(load_benchmark(path))
    assert outcomes[0].state(Trial("hidden", 1)).startswith("failed: Training diverged")
    assert "mood, hidden-seed1 failed and is left out." in paper_tables(outcomes)[0].notes
    assert [cell.text for cell in failure_table(outcomes).cells()[0]][:3] == ["mood", "hidden", "1"]
    runs.broken = set()
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(path)])
    assert stopped.value.code == 0
    assert json.loads((place / "plan" / "benchmark.json").read_text())["tasks"]["mood"]["failures"] == {}


def test_a_signal_stops_everything(write_plan, monkeypatch, capsys):
    def start_run(*_, **__):
        raise Interrupted("baseline-seed1: stopped at step 1 of 2; a checkpoint is saved.")

    monkeypatch.setattr("ebmcal.runs.start_run", start_run)
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(write_plan(tasks=["mood", "other"]))])
    assert stopped.value.code == 130
    assert "task 2 of 2" not in capsys.readouterr().err


def test_corrupt_results_are_a_failure_that_names_the_file(write_plan, runs):
    plan = load_benchmark(write_plan())
    directory = plan.tasks[0].directory
    write_text(directory.results, "{")
    (outcome,) = gather(plan)
    assert str(directory.results) in outcome.state(Trial("baseline", 1))
    assert run_benchmark(plan)[0].done == plan.tasks[0].trials


def test_dry_run_lists_trials_and_starts_nothing(write_plan, runs, place, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(write_plan()), "--dry-run"])
    assert stopped.value.code == 0
    assert "not run" in capsys.readouterr().out
    assert runs == []
    assert not (place / "plan").exists()
    run_benchmark(load_benchmark(write_plan()))
    with pytest.raises(SystemExit):
        main(["benchmark", str(write_plan()), "--dry-run"])
    assert "2 of 2 trials are done. Nothing was started." in capsys.readouterr().out


def test_nothing_run_gives_no_table_but_files(tmp_path):
    config = RunConfig(output=tmp_path / "rte", task="rte")
    outcomes = gather(Benchmark(tmp_path, (BenchmarkTask("rte", config),)))
    assert paper_tables(outcomes) == []
    assert results_frame(outcomes).empty
    write_results(tmp_path, outcomes)
    assert "No model has been evaluated yet" in (tmp_path / "report.html").read_text()


def test_differences_over_tasks_are_means_of_the_tests():
    test = {"model": "hidden", "calibrator": None, "reference": "baseline", "test_set": "test", "metric": "nll"}
    numbers = {"difference": -0.1, "low": -0.2, "high": 0.0, "p_value": 0.05, "standard_error": 0.05, "df": 100.0}
    tasks = [make_evaluation([], [test | numbers | {"difference": d}], task=t) for t, d in (("a", -0.1), ("b", -0.3))]
    (found,) = across_tasks(tasks)
    assert found["difference"] == pytest.approx(-0.2)
    assert found["p_adjusted"] == found["p_value"] < 0.01
    assert across_tasks(tasks[:1]) == []
    values = {("baseline", 1, None): {"accuracy": 0.8}}
    assert across_tasks([make_evaluation(make_results(values))] * 2) == []


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
    table = paper_table([two_methods(), make_evaluation(mnli, task="mnli")], published=False)
    assert table.columns[1:4] == [("RTE", "acc."), ("RTE", "ECE"), ("MNLI", "acc.")]
    names = ["baseline", "temperature (train)", "hidden", "temperature (dev)", "baseline ensemble"]
    assert column(table, "Method") == names
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
    top_label = paper_table([two_methods()], ece="ece_top_label", published=False)
    assert column(top_label, ("RTE", "ECE"))[0] == "0.120"
    assert "top-label" in top_label.notes[0]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_wide_tables_are_split_at_groups_and_lose_nothing(width):
    from rich.console import Console

    records = two_methods().results.to_dict("records")
    evaluations = [make_evaluation(records, task=task) for task in ("rte", "cola", "sst2", "wnli")]
    console = Console(width=width)
    with console.capture() as captured:
        console.print(paper_table(evaluations, published=False))
    shown = captured.get()
    assert max(map(len, shown.splitlines())) <= width
    assert all(name in shown for name in ("RTE", "CoLA", "SST-2", "WNLI", "Average"))


# The file


def test_all_mistakes_are_reported_at_once(write_plan, place, capsys):
    path = write_plan(
        "wrong", task="rte",
        tasks=[
            "sst3", {"train": str(place / "absent.csv")}, {"task": "rte", "batch_size": 0}, "mood",
            {"task": "cola", "methods": ["hiden"], "data_dir": str(place)}, {"name": "a/b", "train": "x.csv"},
            {"encodr": 3, "train": str(place / "mood.csv"), "name": "third"}, {"steps": 3}, 7,
            {"name": "MOOD", "train": str(place / "mood.csv")},
        ],
    )  # fmt: skip
    with pytest.raises(SystemExit) as stopped:
        main(["benchmark", str(path)])
    assert stopped.value.code == 1
    shown = capsys.readouterr().err
    assert not (place / "wrong").exists()
    for part in (
        "Did you mean 'encoder'", "Did you mean 'hidden'", "all tasks: task belongs to one task", "'sst3'",
        "Did you mean 'sst2'", "absent.csv", "batch-size", "'a/b'", "got neither", "got 7", "two tasks are called MOOD",
    ):  # fmt: skip
        assert part in shown, part


def test_what_would_stop_a_run_is_reported_before_any_run(write_plan):
    with pytest.raises(EbmcalError, match="warmup_steps is 10, more than the 2 training steps"):
        load_benchmark(write_plan(warmup_steps=10))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected a list of tasks"),
        ("tasks: {rte: {}}\noutput: x", "got dict"),
        ("tasks: [rte]", "write `output: runs/NAME`"),
        ("tasks: [rte]\noutput: [1]", "expected a directory"),
        ("tasks: [{task: rte, output: y}]\noutput: x", "output is set once"),
        ("tasks: [rte, {task: RTE, noise_ratio: 1}]\noutput: x", "two tasks are called rte"),
        ("- rte", "must contain `setting: value` lines"),
        ("tasks: [stsb]\noutput: x", "regression"),
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
    assert [task.is_selected for task in plan.tasks] == [True, False]


def test_settings_of_a_task_override_shared_ones(write_plan, place, tmp_path):
    own = {"train": str(place / "mood.csv"), "epochs": 3}
    path = write_plan(data_dir=str(tmp_path), calibration="holdout", tasks=[own, {"task": "rotten-tomatoes"}])
    task, installed = load_benchmark(path, output=tmp_path / "elsewhere", only=["mood"]).tasks
    assert task.config.data_dir is None
    assert (task.config.epochs, task.config.steps) == (3, None)
    assert task.config.calibration == "holdout"
    assert task.directory.root == tmp_path / "elsewhere" / "mood"
    assert installed.config.data_dir is None


@pytest.fixture
def no_data(monkeypatch):
    """Neither data nor models are looked at."""
    monkeypatch.setattr("ebmcal.benchmark.check_task", lambda task: None)


def test_example_runs_all_tasks_of_the_paper_with_published_settings(no_data):
    plan = load_benchmark(EXAMPLES / "glue.yaml")
    assert [task.name for task in plan.tasks] == [name for name, task in TASKS.items() if task.published]
    assert all(task.config.recipe == "published" for task in plan.tasks)
    assert {"baseline", "poscal", "scalar", "hidden", "sharp-hidden"} <= set(plan.tasks[0].config.methods)


@pytest.mark.slow
def test_a_real_benchmark_of_a_tiny_encoder(write_plan, place):
    path = write_plan(methods=["baseline", "hidden"], noise="splice", calibration="holdout", batch_size=4)
    outcomes = run_benchmark(load_benchmark(path))
    assert headline(outcomes) == "4 of 4 trials done"
    assert load_config(outcomes[0].task.directory.config).steps == 2
    assert "hidden" in (place / "plan" / "benchmark.md").read_text()


def test_a_mistake_of_several_tasks_is_reported_once(write_plan):
    with pytest.raises(EbmcalError) as found:
        load_benchmark(write_plan(tasks=["mood", "other"], encoder="./no-such-encoder"))
    assert str(found.value).count("no-such-encoder") == 1
    assert "mood, other:" in str(found.value)


def test_only_a_failure_of_a_selected_task_is_an_error(write_plan, runs, capsys):
    runs.broken = {("other", "baseline-seed1")}
    path = write_plan(tasks=["mood", "other"])
    for names, code in ((), 1), (("--only", "mood"), 0):
        with pytest.raises(SystemExit) as stopped:
            main(["benchmark", str(path), *names])
        assert stopped.value.code == code
