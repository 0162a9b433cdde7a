"""Whole runs: what they produce, resuming, adding to a run, refusing other data."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from scipy.special import softmax
from transformers import AutoModelForSequenceClassification, T5Config, T5ForSequenceClassification

import ebmcal
from ebmcal.calibration import make_calibrator, save_calibrator
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.pipeline import cross_fit, probe, store_calibrator, undertrained_folds
from ebmcal.run_dir import Trial, read_card, update_card
from small_runs import LABELS, rows, small_settings, write_csv
from tiny_models import make_wordpiece, save_language_model


@pytest.fixture(scope="module")
def finished(tmp_path_factory, encoder_dir):
    """A run with cross-fitting, OOD texts and two methods."""
    folder = tmp_path_factory.mktemp("run")
    train, test = write_csv(folder / "train.csv", rows(90)), write_csv(folder / "test.csv", rows(150)[90:])
    other = [f"a photo of {i} dogs" for i in range(30)]
    with pytest.MonkeyPatch.context() as patch:  # it would copy all texts and draw a progress bar
        patch.setattr("datasets.Dataset.flatten_indices", lambda *_, **__: pytest.fail("flattening the indices"))
        return ebmcal.run(
            train, test=test, methods="baseline, hidden", ood={"photos": other}, folds=3, output=folder / "run",
            **small_settings(encoder_dir),
        )  # fmt: skip


def test_a_run_has_models_predictions_results_and_a_report(finished):
    assert [trial.name for trial in finished.trials] == ["baseline-seed1", "hidden-seed1", "frozen-probe-seed0"]
    for method in ("baseline", "hidden"):
        for split, n in (("test", 60), ("train", 90), ("out_of_fold", 90), ("ood_photos", 30), ("noise", 60)):
            p = finished.predictions(method, split)
            assert p.n_rows == n
            assert p.label_names == LABELS
    assert finished.report.read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    log = (finished.folder / "log.txt").read_text()
    assert log.index("cross-fitting: 3 folds; training takes 4 times") < log.index("baseline-seed1: started")
    assert finished.advice
    issues = finished.label_issues
    assert len(issues)
    assert issues["place"].tolist() == [f"line {int(number) + 2}" for number in issues["id"]]


def test_results_are_tidy(finished):
    results = finished.results
    assert {"method", "seed", "calibrator", "test_set", "metric", "value", "low", "high", "n_rows"} <= set(
        results.columns
    )
    assert {"baseline", "hidden", "frozen-probe"} <= set(results["method"])
    assert "temperature (cross-fit)" in set(results["calibrator"].dropna())
    row = results.query("method == 'hidden' and metric == 'accuracy' and calibrator.isna()").iloc[0]
    assert row["value"] == pytest.approx(float((p := finished.predictions("hidden")).predicted.__eq__(p.labels).mean()))


def test_the_frozen_probe_is_a_model_that_gives_its_predictions(finished):
    p, model = finished.predictions("frozen-probe"), finished.model("frozen-probe")
    assert model.predict(p.texts, calibrated=False).probs == pytest.approx(p.probs, abs=1e-5)
    assert finished.predictions("frozen-probe", "out_of_fold").n_rows == 90


def save_t5(folder):
    """A tiny encoder-decoder; its texts end with [SEP]."""
    shape = {"vocab_size": 120, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    T5ForSequenceClassification(T5Config(**shape, eos_token_id=3, decoder_start_token_id=0)).save_pretrained(folder)
    make_wordpiece().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("save", "has_probe"), [(partial(save_language_model, kind="gpt2"), True), (save_t5, False)])
def test_runs_with_other_architectures_finish(save, has_probe, tmp_path):
    settings = small_settings(save(tmp_path / "encoder"), methods="baseline", calibration="holdout")
    run = ebmcal.run((TEXTS, NAMES), test=(TEXTS, NAMES), output=tmp_path / "run", **settings)
    assert ("frozen-probe" in [trial.method for trial in run.trials]) == has_probe
    assert run.advice


@pytest.mark.filterwarnings("ignore::ebmcal.calibration.FewRowsWarning")
@pytest.mark.parametrize("fold", [False, True])
def test_a_run_keeps_the_calibrator_that_the_user_stored(finished, tmp_path, fold):
    model = tmp_path / "model"
    shutil.copytree(finished.directory.model(finished.trials[0]), model)
    ours, theirs = (make_calibrator("temperature").fit_predictions(finished.predictions("baseline", split))
                    for split in ("out_of_fold", "test"))  # fmt: skip
    lines = []
    reporter = SimpleNamespace(info=lines.append)
    update_card(model, calibrator=None)
    store_calibrator(model, ours, reporter)
    store_calibrator(model, ours, reporter)
    assert not lines, "its own one is replaced"
    save_calibrator(model, theirs, fold=fold)
    before = read_card(model)
    store_calibrator(model, ours, reporter)
    assert read_card(model) == before
    assert "keeps the one" in lines[0]


def test_out_of_fold_predictions_cover_every_training_row_once(finished):
    p = finished.predictions("hidden", "out_of_fold")
    assert len(set(p.ids)) == 90
    assert p.meta["split"] == "out_of_fold"


def test_the_recommended_model_is_calibrated_and_loads_from_the_run_directory(finished):
    recommended = finished.document["recommended"]
    model = ebmcal.load(finished.folder)
    assert model.folder.parent.name == recommended["trial"]
    assert (model.calibrator is None) == (recommended["calibrator"] is None)
    assert model.predict(["the film is so"]).probs.shape == (1, 3)
    assert repr(finished.recommended) == repr(model)


def test_models_are_plain_checkpoints(finished):
    plain = AutoModelForSequenceClassification.from_pretrained(finished.directory.model(finished.trials[1])).eval()
    assert plain.config.id2label == dict(enumerate(LABELS))
    history = (finished.directory.trial(finished.trials[1]) / "history.jsonl").read_text().splitlines()
    assert any("eval_ece_classwise" in json.loads(line) for line in history)


def test_the_same_call_again_does_nothing_new_and_a_method_can_be_added(finished, encoder_dir, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    before = {p: p.stat().st_mtime_ns for p in folder.glob("trials/*/model/*.safetensors")}
    train, test = (finished.folder.parent / name for name in ("train.csv", "test.csv"))
    again = ebmcal.run(
        train, test=test, methods="label-smoothing", output=folder, **small_settings(encoder_dir)
    )  # the folds are still 3
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert {trial.method for trial in again.trials} == {"baseline", "hidden", "label-smoothing", "frozen-probe"}
    assert {"baseline", "hidden", "label-smoothing"} <= set(again.results["method"])


def test_another_config_or_other_data_is_refused(finished, encoder_dir):
    train, test = (finished.folder.parent / name for name in ("train.csv", "test.csv"))
    settings = small_settings(encoder_dir)
    settings["batch_size"] = 4
    with pytest.raises(EbmcalError, match="batch_size was 8, is 4.*Pass the same settings, or another --output"):
        ebmcal.run(train, test=test, methods="hidden", folds=3, output=finished.folder, **settings)
    with pytest.raises(EbmcalError, match="folds was 3, is 2"):
        ebmcal.run(train, test=test, methods="hidden", folds=2, output=finished.folder, **small_settings(encoder_dir))
    with pytest.raises(EbmcalError, match="texts or labels of test changed"):
        ebmcal.run(train, test=train, methods="hidden", folds=3, output=finished.folder, **small_settings(encoder_dir))


@pytest.mark.parametrize("content", ["[]", '{"recommended": "x"}', "{}"])
def test_a_run_with_damaged_results_recommends_nothing(content, tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / "trials").mkdir()
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(EbmcalError, match="no recommended model"):
        ebmcal.load(tmp_path)


def test_a_corrupt_prediction_file_is_predicted_again(finished, encoder_dir, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    for name in ("test.parquet", "out_of_fold.parquet"):
        path = folder / "trials" / "hidden-seed1" / name
        path.write_bytes(path.read_bytes()[:100])
    train, test = (finished.folder.parent / name for name in ("train.csv", "test.csv"))
    again = ebmcal.run(train, test=test, methods="hidden", folds=3, output=folder, **small_settings(encoder_dir))
    np.testing.assert_allclose(again.predictions("hidden").logits, finished.predictions("hidden").logits, atol=1e-5)
    for name in ("test.parquet", "out_of_fold.parquet"):
        assert f"{name} is corrupt" in (folder / "log.txt").read_text()


def test_a_damaged_fold_is_removed_and_repeated(finished, encoder_dir, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    trial = folder / "trials" / "hidden-seed1"
    (trial / "out_of_fold.parquet").unlink()
    (trial / "folds" / "0").mkdir(parents=True)
    (trial / "folds" / "0" / "outputs.npz").write_bytes(b"PK damaged")
    train, test = (finished.folder.parent / name for name in ("train.csv", "test.csv"))
    arguments = {"test": test, "methods": "hidden", "folds": 3, "output": folder, **small_settings(encoder_dir)}
    with pytest.raises(EbmcalError, match="outputs.npz was damaged and is removed"):
        ebmcal.run(train, **arguments)
    again = ebmcal.run(train, **arguments).predictions("hidden", "out_of_fold")
    np.testing.assert_array_equal(again.logits, finished.predictions("hidden", "out_of_fold").logits)


def test_new_ood_texts_are_predicted_by_all_models_of_the_run(encoder_dir, tmp_path):
    settings = small_settings(encoder_dir)
    settings["settings"] |= {"frozen_probe": False}
    for methods, other in (("baseline, laplace", ["a photo of a dog"] * 9), ("baseline", ["another text"] * 7)):
        run = ebmcal.run(
            (TEXTS, NAMES),
            calibration="holdout",
            methods=methods,
            ood={"x": other},
            output=tmp_path / "run",
            **settings,
        )
    for method in ("baseline", "laplace"):
        assert run.predictions(method, "ood_x").texts == other


def test_the_seconds_of_a_training_include_those_before_an_interruption(encoder_dir, tmp_path):
    settings = small_settings(encoder_dir)
    settings["settings"] |= {"frozen_probe": False, "save_steps": 2, "steps": 4}
    arguments = {"calibration": "holdout", "methods": "baseline", "output": tmp_path / "run", **settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ebmcal.pipeline.trials.save_model", lambda *_: (_ for _ in ()).throw(Interrupted("stopped")))
        with pytest.raises(Interrupted):
            ebmcal.run((TEXTS, NAMES), **arguments)
    (checkpoint,) = (tmp_path / "run" / "trials" / "baseline-seed1").glob("checkpoint-4")
    (checkpoint / "complete").write_text("1000.0")
    run = ebmcal.run((TEXTS, NAMES), **arguments)
    assert run.document["training"]["baseline-seed1"]["seconds"] > 1000


def test_an_interrupted_cross_fitting_keeps_its_finished_folds(finished, encoder_dir, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(finished.folder, folder)
    (folder / "trials" / "hidden-seed1" / "out_of_fold.parquet").unlink()
    train, test = (finished.folder.parent / name for name in ("train.csv", "test.csv"))
    trained, original = [], cross_fit.train_model

    def interrupted(work, trial, rows, directory, *, title, curves):
        if title.endswith("fold 3") and "hidden-seed1, fold 3" not in trained:
            trained.append(title)
            raise Interrupted("stopped")
        trained.append(title)
        original(work, trial, rows, directory, title=title, curves=curves)

    monkeypatch.setattr(cross_fit, "train_model", interrupted)
    monkeypatch.setattr("ebmcal.training.runtime.TIMED_STEPS", 2)
    arguments = {"test": test, "methods": "hidden", "folds": 3, "output": folder, **small_settings(encoder_dir)}
    with pytest.raises(Interrupted):
        ebmcal.run(train, **arguments)
    again = ebmcal.run(train, **arguments)
    assert [title[-1] for title in trained] == ["1", "2", "3", "3"]
    times = [line[20:] for line in (folder / "log.txt").read_text().splitlines() if "training time: about " in line]
    first, second = times
    assert re.fullmatch(r"training time: about \d+ seconds?: 3 trainings of about \d+ seconds?", first)
    assert re.fullmatch(r"training time: about \d+ seconds?", second)
    a, b = (run.predictions("hidden", "out_of_fold") for run in (finished, again))
    np.testing.assert_array_equal(a.logits, b.logits)


TEXTS, NAMES = [text for text, _ in rows(90)], [label for _, label in rows(90)]


@pytest.mark.parametrize(
    "data",
    [(TEXTS, NAMES), pd.DataFrame({"text": TEXTS, "label": NAMES}), Dataset.from_dict({"text": TEXTS, "label": NAMES})],
    ids=["lists", "pandas", "datasets"],
)
def test_data_in_memory_with_a_holdout_split_and_no_output(data, encoder_dir):
    run = ebmcal.run(data, calibration="holdout", methods="baseline", **small_settings(encoder_dir))
    assert run.predictions("baseline", "calibration").n_rows == 9
    assert "temperature (dev)" in set(run.results["calibrator"].dropna())
    assert run.model().predict(TEXTS[:2]).n_rows == 2


def test_every_split_may_be_a_data_frame_and_the_frozen_probe_can_be_left_out(encoder_dir):
    frame, settings = pd.DataFrame({"text": TEXTS, "label": NAMES}), small_settings(encoder_dir)
    settings["settings"] |= {"frozen_probe": False}
    run = ebmcal.run(frame[:60], calibration=frame[60:75], test=frame[75:], methods="baseline", **settings)
    assert run.predictions("baseline", "calibration").n_rows == 15
    assert [trial.name for trial in run.trials] == ["baseline-seed1"]


def test_pairs_and_ids(encoder_dir, tmp_path):
    data = [(f"q{i}", a, a[::-1], label) for i, (a, label) in enumerate(rows(60))]
    path = write_csv(tmp_path / "pairs.csv", data, ("key", "first", "second", "label"))
    run = ebmcal.run(
        path, text_column="first", text_pair_column="second", id_column="key", calibration="holdout",
        methods="hidden", output=tmp_path / "run", **small_settings(encoder_dir),
    )  # fmt: skip
    p = run.predictions("hidden")
    assert set(p.ids) <= {key for key, *_ in data}
    assert p.text_pairs is not None
    with pytest.raises(EbmcalError, match="trained on pairs of texts, got single texts"):
        run.model().predict(["one text"])


def test_only_train_stops_after_training(encoder_dir, tmp_path):
    settings = small_settings(encoder_dir)
    settings["settings"] |= {"only": "train"}
    run = ebmcal.run((TEXTS, NAMES), methods="hidden", output=tmp_path / "run", **settings)
    assert [trial.name for trial in run.trials] == ["hidden-seed1"]
    with pytest.raises(EbmcalError, match="not finished"):
        _ = run.results


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": "hiden"}, "Did you mean 'hidden'"),
        ({"folds": 1, "calibration": "cross-fit"}, "greater than or equal to 2"),
        ({"settings": {"stpes": 3, "max_length": 32}}, "Did you mean 'steps'"),
        ({"settings": {"steps": 3}, "epochs": 2}, "either steps or epochs"),
        ({"settings": {"max_length": 4096}}, "at most 64 tokens"),
        ({"settings": {"steps": 2, "warmup_steps": 5, "max_length": 32}}, "warmup_steps is 5"),
        ({"batch_size": 500}, "fewer than one batch"),
        ({"noise": "splce"}, "Did you mean 'splice'"),
        ({"folds": 3, "calibration": "holdout"}, "--folds has no effect"),
    ],
)
def test_wrong_settings_are_reported_before_anything_is_trained(changes, message, encoder_dir, tmp_path):
    arguments = small_settings(encoder_dir, methods="hidden", output=tmp_path / "run") | changes
    with pytest.raises(EbmcalError, match=message):
        ebmcal.run((TEXTS, NAMES), **arguments)
    assert not (tmp_path / "run" / "trials").exists()


def test_one_class_is_refused_and_a_label_with_one_row_is_named(encoder_dir, tmp_path):
    settings = small_settings(encoder_dir, methods="baseline", calibration="cross-fit", folds=2, test=(TEXTS, NAMES))
    with pytest.raises(EbmcalError, match="class"):
        ebmcal.run((TEXTS, ["good"] * 90), output=tmp_path, **settings)
    # nothing was trained, so the corrected data may use the same directory
    run = ebmcal.run((TEXTS, [*NAMES[:-1], "god"]), output=tmp_path, **settings)
    assert run.predictions("baseline", "out_of_fold").n_rows == 89
    assert run.predictions("frozen-probe", "out_of_fold").n_rows == 89
    assert (tmp_path / "log.txt").read_text().count("labels with a single training text: 'god'") == 1


def test_a_changed_noise_file_is_noticed(encoder_dir, tmp_path):
    file = tmp_path / "pages.txt"
    file.write_text("one page\nanother page\n")
    settings = small_settings(encoder_dir, methods="hidden", noise=f"unrelated:{file}", output=tmp_path / "run")
    settings["settings"] |= {"only": "train"}
    ebmcal.run((TEXTS, NAMES), **settings)
    ebmcal.run((TEXTS, NAMES), **settings)
    file.write_text("one page\nsomething else\n")
    with pytest.raises(EbmcalError, match=r"noise file .*pages.txt changed since the run"):
        ebmcal.run((TEXTS, NAMES), **settings)


@pytest.mark.parametrize(("scale", "n"), [(1.0, 0), (0.2, 1)])
def test_undertrained_fold_models_are_mentioned(scale, n):
    """Logits with a temperature of 1, and the same ones five times as small."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    splits = {"out_of_fold": ebmcal.Predictions(labels, LABELS, logits=scale * logits)}
    assert ["undertrained" in s for s in undertrained_folds(Trial("hidden", 1), splits)] == [True] * n
    assert not undertrained_folds(Trial("frozen-probe", 0), splits)


def test_the_strength_of_the_probe_is_chosen_on_some_rows_and_inside_the_range(monkeypatch):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    features = np.eye(3)[labels] + rng.normal(size=(600, 3))
    tried, original = {}, probe.out_of_fold

    def recorded(strength, x, y, *rest):
        tried[strength] = len(y)
        return original(strength, x, y, *rest)

    monkeypatch.setattr(probe, "out_of_fold", recorded)
    monkeypatch.setattr(probe, "MAX_STRENGTH_ROWS", 300)
    fitted = probe.fit_probe(features / 10, labels)  # small features need a large strength
    assert set(tried.values()) == {300}
    assert probe.FIRST_STRENGTH < fitted.C < max(tried)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_head_of_the_probe_is_the_regression(n_classes):
    rng = np.random.default_rng(0)
    labels = rng.integers(n_classes, size=200)
    features = np.eye(3)[labels] + rng.normal(size=(200, 3))
    fitted = probe.fit_probe(features, labels)
    weight, bias = probe.linear_layer(fitted, n_classes + 1)  # and a class without rows
    probs = softmax(features @ weight.T + bias, axis=1)
    assert probs[:, :n_classes] == pytest.approx(fitted.predict_proba(features), abs=1e-6)
    assert probs[:, n_classes].max() < 1e-6


def test_an_output_directory_with_other_files_is_refused(encoder_dir, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EbmcalError, match="not a run directory"):
        ebmcal.run((TEXTS, NAMES), output=tmp_path, **small_settings(encoder_dir))
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_predictions(encoder_dir, tmp_path):
    train = write_csv(tmp_path / "train.csv", rows(120))
    command = [
        sys.executable, "-m", "ebmcal", "run", "--train", str(train), "--encoder", str(encoder_dir), "--methods",
        "hidden", "--batch-size", "8", "--folds", "2", "--set", "steps=60", "--set", "save_steps=5", "--set",
        "precision=fp32", "--set", "max_length=32", "--output",
    ]  # fmt: skip
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    complete = "checkpoint-*/complete"  # the others may be killed while they write a checkpoint
    for part in (complete, "folds/0/checkpoint-*", "folds/0/outputs.npz", "folds/1/checkpoint-*"):
        process = subprocess.Popen([*command, str(tmp_path / "killed")], stderr=subprocess.DEVNULL)
        while process.poll() is None and not list((tmp_path / "killed" / "trials" / "hidden-seed1").glob(part)):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run([*command, str(tmp_path / "killed")], check=True, capture_output=True)
    assert "continuing at step" in (tmp_path / "killed" / "log.txt").read_text()
    for split in ("test", "out_of_fold"):
        a, b = (ebmcal.open_run(tmp_path / name).predictions("hidden", split) for name in ("whole", "killed"))
        np.testing.assert_array_equal(a.logits, b.logits)


@pytest.mark.slow
def test_two_processes_of_torchrun_train_like_one(encoder_dir, tmp_path):
    train = write_csv(tmp_path / "train.csv", rows(120))
    arguments = [
        "run", "--train", str(train), "--encoder", str(encoder_dir), "--methods", "hidden", "--batch-size", "8",
        "--set", "steps=10", "--set", "precision=fp32", "--set", "max_length=32", "--calibration", "holdout",
        "--output",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "ebmcal", *arguments, str(tmp_path / "one")], check=True, env=environment)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29533"]
    subprocess.run([*launch, "-m", "ebmcal", *arguments, str(tmp_path / "two")], check=True, env=environment)
    texts = [text for text, _ in rows(20)]
    one, two = (ebmcal.open_run(tmp_path / name).model("hidden").predict(texts).logits for name in ("one", "two"))
    np.testing.assert_allclose(one, two, atol=1e-4)
    assert (tmp_path / "two" / "report.html").is_file()
