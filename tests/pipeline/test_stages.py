"""`ebmcal run` from a CSV of texts to a report, on tiny models: what it leaves, what it reuses, what it refuses."""

import json
import os
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from transformers import pipeline as hf_pipeline

from ebmcal.config import load_config
from ebmcal.errors import EbmcalError
from ebmcal.judging import Measures, judge_run
from ebmcal.noise.store import NoiseStore
from ebmcal.pipeline import stages as pipeline
from ebmcal.pipeline.run_noise import make_noise
from ebmcal.pipeline.stages import prepare, read_document, run
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import read_json, write_json
from ebmcal.storage.locks import locked
from ebmcal.storage.sealing import SEAL
from ebmcal.training.trainer import JointTrainer
from small_runs import HELD_OUT, LABELS, Lines, make_small, own_rows, settings, write_csv
from tiny_models import SENTENCES

BASELINE, HIDDEN = Cell("baseline", 1), Cell("hidden", 1)


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    make_small(monkeypatch)


@pytest.fixture
def no_report(monkeypatch):
    """Intervals and the report take longer than all the rest; the finished run has real ones."""
    monkeypatch.setattr(pipeline, "write_report", lambda root: root)
    monkeypatch.setattr(pipeline, "judge_run", partial(judge_run, how=Measures(n_resamples=5)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return write_csv(folder / "moods.csv", own_rows())


@pytest.fixture(scope="module")
def finished(files, encoder_folder, tmp_path_factory):
    """A run of two methods, with its report."""
    folder, lines = tmp_path_factory.mktemp("finished"), Lines()
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        made = run(settings(files, encoder_folder, folder), lines)
    return made, lines.lines


def times(root):
    """When each file of a run or a cache was last written; what is written at every call aside, and cards."""
    always = {"metrics.json", "report.html", "config.yaml", "fingerprints.json", "noise_examples.json", ".lock"}
    always |= {"README.md", "reliability.png"}  # they have the figures of `metrics.json`
    files = [p for p in root.rglob("*") if p.is_file() and p.name not in always]
    return {p: p.stat().st_mtime_ns for p in files if not (p.parent / "config.yaml").exists()}


def test_a_run_leaves_what_the_layout_says(finished):
    folder, _ = finished
    assert folder.config.exists()
    assert folder.cells() == [BASELINE, HIDDEN]
    for cell in folder.cells():
        assert folder.splits(cell) == ["calibration", "noise", "test", "train"]
        assert (folder.model(cell) / "model.safetensors").exists()
        assert not list(folder.checkpoints(cell).glob("checkpoint-*"))
        lines = [json.loads(line) for line in folder.history(cell).read_text().splitlines()]
        assert [line["step"] for line in lines if "loss" in line] == list(range(1, 7))
        assert [line["step"] for line in lines if "eval_ece_classwise" in line] == [3, 6]
        assert ("noise_accuracy" in lines[0]) == (cell == HIDDEN)
    page = folder.report.read_text(encoding="utf-8")
    assert "hidden" in page
    assert "very bad" in page


def test_the_config_is_recorded_as_resolved(finished):
    recorded = yaml.safe_load(finished[0].config.read_text())
    assert recorded["noise"] == "gaps:small"
    assert recorded["noise_lm"] is None
    assert recorded["learning_rate"] > 0
    assert recorded["steps"] == 6


def test_the_metrics_document(finished):
    folder, _ = finished
    document = read_document(folder)
    assert sorted(document["label_names"]) == sorted(LABELS)
    kinds = {(row["method"], row["posthoc"]) for row in document["rows"]}
    posthoc = (None, "temperature (train)", "temperature (dev)")
    assert kinds == {(method, name) for method in ("baseline", "hidden") for name in posthoc}
    for row in document["rows"]:
        assert row["n_rows"] == 12
        for metric in ("accuracy", "ece_classwise", "ece_top_label", "nll", "brier"):
            figure = row["metrics"][metric]
            assert figure["low"] <= figure["value"]
            assert figure["value"] <= figure["high"] or "noise_floor" in figure
    assert {test["metric"] for test in document["paired"]} >= {"accuracy", "ece_classwise", "nll"}
    assert all(test["against"] == "baseline" and test["method"] == "hidden" for test in document["paired"])
    assert "noise by energy" in document["detection"]["hidden-seed1"]
    assert document["training"]["hidden-seed1"]["noise_texts_used"] == 6 * 8 * 2
    assert document["training"]["hidden-seed1"]["noise_rounds"] == 6 * 8 * 2 / 40
    assert document["training"]["baseline-seed1"]["noise_texts_used"] == 0
    assert document["noise_source"] == "gaps:small"
    assert set(document["noise"]) == {"gaps:small"}
    noise = document["noise"]["gaps:small"]
    assert (noise["n_samples"], noise["share"], noise["online"]) == (40, 1.0, False)
    assert noise["perplexity"] < noise["perplexity_before"]
    assert 0 <= noise["probe"] <= 1
    assert set(document["training"]["hidden-seed1"]["told_apart_by_source"]) == {"gaps:small"}
    assert set(document["training"]["hidden-seed1"]["told_apart_held_out"]) == {"gaps:small"}
    assert "told_apart_held_out" not in document["training"]["baseline-seed1"]
    assert document["versions"]["torch"]
    assert set(document["fingerprints"]) == {"train", "calibration", "test"}
    assert document["data"]["truncated"] == {"train": 0, "calibration": 0, "test": 0}


def test_a_fit_that_failed_is_noted_and_not_warned_of(finished):
    """Logits of a model of six steps say little: the temperature of some row runs into its bound."""
    notes = [row["note"] for row in read_document(finished[0])["rows"] if row["posthoc"]]
    assert all(note.startswith("T = ") for note in notes)


def test_metrics_are_those_of_the_predictions(finished):
    folder, _ = finished
    predictions = Predictions.read(folder.predictions(HIDDEN, "test"))
    accuracy = float(np.mean(predictions.logits.argmax(1) == predictions.labels))
    rows = read_document(folder)["rows"]
    (row,) = (row for row in rows if row["method"] == "hidden" and row["posthoc"] is None)
    assert row["metrics"]["accuracy"]["value"] == pytest.approx(accuracy)
    assert predictions.meta["energy"] == "hidden"
    log_sum = np.log(np.exp(predictions.logits.astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(predictions.energies, -log_sum, atol=1e-5)


def test_predictions_of_noise_are_of_texts_that_no_training_drew(finished):
    """The store has 40 texts for trainings, and after them those that are kept back."""
    folder, _ = finished
    noise = Predictions.read(folder.predictions(BASELINE, "noise"))
    (place,) = (path.parent for path in folder.root.parent.glob("cache/noise/*/shard-00000.parquet"))
    stored = [row["text"] for row in NoiseStore.open(place).rows(10**6)]
    assert list(noise.texts) == stored[40 : 40 + HELD_OUT]
    assert noise.n_rows == HELD_OUT
    assert list(noise.ids) == [f"noise-gaps:small-{i}" for i in range(HELD_OUT)]
    assert set(noise.labels.tolist()) == {-1}
    examples = json.loads(folder.noise_examples.read_text())
    assert examples
    assert {e["noise"] for e in examples} <= set(stored)
    known = {text for text, _ in own_rows()}
    assert all(e["source"] in known and "<M>" in e["masked"] for e in examples)


def test_the_model_is_a_plain_checkpoint_with_the_users_labels(finished):
    folder, _ = finished
    test = Predictions.read(folder.predictions(HIDDEN, "test"))
    classify = hf_pipeline("text-classification", model=str(folder.model(HIDDEN)), device="cpu")
    for i in (0, 5):
        scores = {r["label"]: r["score"] for r in classify(test.texts[i], top_k=None, function_to_apply="none")}
        np.testing.assert_allclose([scores[name] for name in test.label_names], test.logits[i], atol=1e-4)


def test_the_same_call_again_does_nothing_again(finished, files, encoder_folder, no_report):
    folder, _ = finished
    before = times(folder.root.parent)
    lines = Lines()
    run(settings(files, encoder_folder, folder.root.parent), lines)
    assert times(folder.root.parent) == before
    assert any("are there already" in line for line in lines.lines)


def test_the_resolved_config_is_the_same_run(finished, no_report):
    folder, _ = finished
    before = times(folder.root.parent)
    run(load_config(folder.config, {}), Reporter())
    assert times(folder.root.parent) == before


@pytest.fixture
def copied(finished, tmp_path):
    """The finished run and its cache, to be changed."""
    shutil.copytree(finished[0].root.parent, tmp_path, dirs_exist_ok=True)
    return RunFolder(tmp_path / "run")


def test_another_method_and_seed_reuse_the_noise_and_the_finished_cells(copied, files, encoder_folder, no_report):
    before = times(copied.root.parent)
    config = settings(
        files, encoder_folder, copied.root.parent, methods=["baseline", "hidden", "scalar"], seeds=[1, 2], posthoc=[]
    )  # fmt: skip
    run(config, Reporter())
    after = times(copied.root.parent)
    assert {p: after[p] for p in before} == before
    new = {p.relative_to(copied.root.parent).parts[0] for p in after.keys() - before.keys()}
    assert new == {"run"}  # nothing new in the cache
    assert {cell.name for cell in copied.cells()} == {
        f"{method}-seed{seed}" for method in ("baseline", "hidden", "scalar") for seed in (1, 2)
    }
    assert (copied.model(Cell("scalar", 2)) / "energy_head.safetensors").exists()
    first, second = (Predictions.read(copied.predictions(Cell("hidden", s), "test")).logits for s in (1, 2))
    assert not np.array_equal(first, second)


def test_damaged_predictions_are_made_again_and_the_model_is_not(copied, files, encoder_folder, no_report):
    victim = copied.predictions(HIDDEN, "test")
    expected = victim.read_bytes()
    victim.write_bytes(expected[:-100])
    weights = (copied.model(HIDDEN) / "model.safetensors").stat().st_mtime_ns
    run(settings(files, encoder_folder, copied.root.parent), Reporter())
    assert victim.read_bytes() == expected
    assert (copied.model(HIDDEN) / "model.safetensors").stat().st_mtime_ns == weights
    sums = json.loads((victim.parent / SEAL).read_text())
    assert set(sums) == {f"{split}.parquet" for split in ("train", "calibration", "test", "noise")}


def test_a_run_is_repeatable_to_the_bit(copied, files, encoder_folder, no_report, tmp_path_factory):
    """From an empty cache in another place, noise LM and noise included."""
    other = tmp_path_factory.mktemp("again")
    torch.manual_seed(4711)  # whatever happened before
    again = run(settings(files, encoder_folder, other), Reporter())
    for cell in (BASELINE, HIDDEN):
        ours, theirs = (f.model(cell) / "model.safetensors" for f in (copied, again))
        assert ours.read_bytes() == theirs.read_bytes()
        for split in ("test", "noise"):
            ours, theirs = (Predictions.read(f.predictions(cell, split)) for f in (copied, again))
            np.testing.assert_array_equal(ours.logits, theirs.logits)
            assert list(ours.texts) == list(theirs.texts)
    shards = [[p.read_bytes() for p in sorted(root.rglob("shard-*"))] for root in (copied.root.parent, other)]
    assert shards[0] == shards[1]
    assert shards[0]


def test_a_model_that_was_deleted_comes_out_the_same(copied, files, encoder_folder, no_report):
    expected = (copied.model(HIDDEN) / "model.safetensors").read_bytes()
    shutil.rmtree(copied.checkpoints(HIDDEN))
    torch.manual_seed(4711)
    run(settings(files, encoder_folder, copied.root.parent), Reporter())
    assert (copied.model(HIDDEN) / "model.safetensors").read_bytes() == expected


def test_a_folder_of_another_config_is_refused(copied, files, encoder_folder):
    before = times(copied.root)
    with pytest.raises(EbmcalError, match=r"belongs to another config \(steps: there 6, now 7\)"):
        run(settings(files, encoder_folder, copied.root.parent, steps=7), Reporter())
    assert times(copied.root) == before
    copied.config.write_text("[")
    with pytest.raises(EbmcalError, match=r"belongs to another config \(its config\.yaml is lost or damaged\)"):
        run(settings(files, encoder_folder, copied.root.parent, steps=7), Reporter())


def test_a_folder_of_a_version_with_other_settings_for_noise_is_recognised(copied, files, encoder_folder, no_report):
    """`noise_lm` and `noise_mode` in its config, and a fingerprint of settings that are no longer all."""
    recorded = yaml.safe_load(copied.config.read_text())
    for added in ("noise", "label_smoothing", "focal_gamma", "mix_weight"):
        del recorded[added]
    copied.config.write_text(yaml.safe_dump(recorded | {"noise_lm": "small", "noise_mode": "gaps"}))
    marks = read_json(copied.fingerprints)
    write_json(copied.fingerprints, marks | {"config": "0" * 16}, checked=True)
    before = times(copied.root.parent)
    run(settings(files, encoder_folder, copied.root.parent), Reporter())
    assert times(copied.root.parent) == before
    with pytest.raises(EbmcalError, match=r"another config \(noise: there gaps:small, now splice"):
        run(settings(files, encoder_folder, copied.root.parent, noise="splice"), Reporter())


def test_data_that_changed_under_a_run_is_refused(copied, encoder_folder, tmp_path_factory):
    before = times(copied.root)
    rows = own_rows()
    rows[3] = ("another text altogether", rows[3][1])
    changed = write_csv(tmp_path_factory.mktemp("changed") / "moods.csv", rows)
    config = settings(changed, encoder_folder, copied.root.parent)
    recorded = yaml.safe_load(copied.config.read_text())
    copied.config.write_text(yaml.safe_dump(recorded | {"train": str(changed)}))
    with pytest.raises(EbmcalError, match=r"The texts or labels of .* have changed since"):
        run(config, Reporter())
    assert times(copied.root) == before


def test_a_folder_with_something_else_is_refused(files, encoder_folder, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(EbmcalError, match="not empty and is no run folder"):
        run(settings(files, encoder_folder, tmp_path), Reporter())
    assert {p.name for p in (tmp_path / "run").iterdir()} <= {"thesis.tex", ".lock"}


def test_a_locked_folder_is_refused(files, encoder_folder, tmp_path):
    with locked(tmp_path / "run"), pytest.raises(EbmcalError, match=f"in use by process {os.getpid()}"):
        run(settings(files, encoder_folder, tmp_path), Reporter())


def refused(files, encoder_folder, folder, **changes):
    """The error of a run, which must come before anything is made."""
    with pytest.raises(EbmcalError) as caught:
        run(settings(files, encoder_folder, folder, **changes), Reporter())
    made = {p.name for p in folder.rglob("*") if p.is_file()}
    assert not {name for name in made if name.endswith((".npy", ".safetensors")) or "shard-" in name}
    assert not (folder / "run" / "predictions").exists()
    return str(caught.value)


def test_bad_data_is_refused_before_any_work(files, encoder_folder, tmp_path):
    rows = own_rows()
    strange = write_csv(tmp_path / "strange.csv", [("a fine film", "awful"), ("a dull film", "bad")])
    message = refused(files, encoder_folder, tmp_path, test=strange)
    assert "awful" in message
    assert "training never saw" in message
    one = write_csv(tmp_path / "one.csv", [(text, "good") for text, _ in rows])
    assert "one class only" in refused(one, encoder_folder, tmp_path)
    few = write_csv(tmp_path / "few.csv", rows[:30])
    assert "take --batch-size" in refused(few, encoder_folder, tmp_path, batch_size=64)
    assert "absent.csv does not exist" in refused(tmp_path / "absent.csv", encoder_folder, tmp_path)
    assert "'mood'" in refused(files, encoder_folder, tmp_path, label_column="mood")


def test_bad_settings_are_refused_before_any_work(files, encoder_folder, tmp_path):
    assert "rewrites one sentence of a pair" in refused(files, encoder_folder, tmp_path, noise="half:small")
    assert "takes 64 at most" in refused(files, encoder_folder, tmp_path, max_length=65)
    assert "Did you mean 'minilm'" in refused(files, encoder_folder, tmp_path, encoder="minilmm")
    assert "Did you mean 'small'" in refused(files, encoder_folder, tmp_path, noise="gaps:smal")
    assert "--output" in refused(files, encoder_folder, tmp_path, output=None)
    empty = tmp_path / "empty-model"
    empty.mkdir()
    assert "has no config.json" in refused(files, encoder_folder, tmp_path, encoder=str(empty))
    (empty / "config.json").write_text('{"model_type": "bert"}')
    (empty / "pytorch_model.bin").write_bytes(b"pickle")
    message = refused(files, encoder_folder, tmp_path, encoder=str(empty))
    assert "no .safetensors weights" in message
    assert "unpickling runs code" in message


def test_texts_that_are_cut_are_counted_and_told(files, encoder_folder, tmp_path, no_report):
    lines = Lines()
    config = settings(files, encoder_folder, tmp_path, max_length=10, methods=["baseline"], steps=1, eval_steps=1)
    folder = run(config, lines)
    cut = read_document(folder)["data"]["truncated"]
    assert cut["train"] > 0
    assert any(re.search(rf"cut: {cut['train']} of \d+ in train", line) for line in lines.lines)


def test_pairs_in_half_mode(encoder_folder, tmp_path, no_report):
    rows = [(a, b, "yes" if i % 2 else "no") for i, (a, b) in enumerate(zip(SENTENCES, SENTENCES[7:], strict=False))]
    pairs = write_csv(tmp_path / "pairs.csv", rows, ("first", "second", "label"))
    columns = {"text_column": "first", "text_pair_column": "second"}
    config = settings(pairs, encoder_folder, tmp_path, noise="half:small", methods=["hidden"], **columns)
    folder = run(config, Reporter())
    noise = Predictions.read(folder.predictions(HIDDEN, "noise"))
    firsts, seconds = {a for a, _, _ in rows}, {b for _, b, _ in rows}
    kept = [a in firsts or b in seconds for a, b in zip(noise.texts, noise.text_pairs, strict=True)]
    assert all(kept)
    test = Predictions.read(folder.predictions(HIDDEN, "test"))
    assert set(zip(test.texts, test.text_pairs, strict=True)) <= {(a, b) for a, b, _ in rows}
    examples = json.loads(folder.noise_examples.read_text())
    assert all("<SEP>" in e["masked"] and e["noise_pair"] for e in examples)


def test_other_texts_are_compared_with(files, encoder_folder, tmp_path, no_report):
    books = write_csv(tmp_path / "books.csv", [(s,) for s in SENTENCES[40:60]], ("text",))
    config = settings(
        files, encoder_folder, tmp_path, methods=["baseline"], steps=1, eval_steps=1, ood={"books": books}
    )  # fmt: skip
    folder = run(config, Reporter())
    assert Predictions.read(folder.predictions(BASELINE, "ood_books")).n_rows == 20
    figures = read_document(folder)["detection"]["baseline-seed1"]
    by = ("energy", "max_prob", "entropy", "mahalanobis", "knn", "mahalanobis_untouched", "knn_untouched")
    assert list(figures) == [f"ood_books by {score}" for score in by]


def test_methods_without_noise_make_none(files, encoder_folder, tmp_path, no_report):
    changes = {"methods": ["baseline", "poscal"], "steps": 2, "eval_steps": 2, "noise": "infill:no-such-lm"}
    config = settings(files, encoder_folder, tmp_path, **changes)
    folder = run(config, Reporter())
    assert not (tmp_path / "cache" / "noise").exists()
    assert read_document(folder)["noise"] is None
    assert not folder.noise_examples.exists()


def test_the_calibration_file_and_test_file_are_used(encoder_folder, tmp_path, no_report):
    rows = own_rows()
    parts = {"train": rows[:80], "calibration": rows[80:100], "test": rows[100:]}
    paths = {name: write_csv(tmp_path / f"{name}.csv", part) for name, part in parts.items()}
    config = settings(
        paths["train"], encoder_folder, tmp_path, calibration=paths["calibration"], test=paths["test"],
        methods=["baseline"], steps=1, eval_steps=1,
    )  # fmt: skip
    folder = run(config, Reporter())
    for name, part in parts.items():
        predictions = Predictions.read(folder.predictions(BASELINE, name))
        assert list(predictions.texts) == [text for text, _ in part]
        assert [predictions.label_names[y] for y in predictions.labels] == [label for _, label in part]


def test_an_interrupted_run_goes_on(files, encoder_folder, tmp_path, no_report, finished):
    """Stopped in the second model: the first is not touched, the second ends as in one go."""
    real = JointTrainer.micro_loss

    def breaks(self, *args):
        if self.method.uses_noise and self.state.global_step == 4:
            raise KeyboardInterrupt
        return real(self, *args)

    config = settings(files, encoder_folder, tmp_path, cache_dir=finished[0].root.parent / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JointTrainer, "micro_loss", breaks)
        with pytest.raises(KeyboardInterrupt):
            run(config, Reporter())
    folder, lines = RunFolder(tmp_path / "run"), Lines()
    before = times(folder.model(BASELINE))
    assert before
    assert not folder.model(HIDDEN).exists()
    run(config, lines)
    assert any("hidden-seed1: goes on at step" in line for line in lines.lines)
    assert times(folder.model(BASELINE)) == before
    ours, theirs = (f.model(HIDDEN) / "model.safetensors" for f in (folder, finished[0]))
    assert ours.read_bytes() == theirs.read_bytes()


def test_several_processes_need_noise_that_is_made(files, encoder_folder, finished, tmp_path, monkeypatch):
    config, data = prepare(settings(files, encoder_folder, tmp_path), Reporter())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EbmcalError, match="Make it first, with the same settings: ebmcal noise sample"):
        make_noise(config, data, Reporter())
    online = config.model_copy(update={"noise": "splice"})
    assert make_noise(online, data, Reporter()).supply(1).names == ("splice",)  # nothing to be made first
    made = settings(files, encoder_folder, finished[0].root.parent)
    config, data = prepare(made, Reporter())
    (source,) = make_noise(config, data, Reporter()).sources
    assert len(source.table) == 40


def test_a_refused_call_leaves_the_config_of_the_folder_alone(finished, files, encoder_folder):
    folder, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.documents()}
    with pytest.raises(EbmcalError, match="--fsdp divides a model among processes"):
        run(settings(files, encoder_folder, folder.root.parent, fsdp=True), Reporter())
    assert {path: path.stat().st_mtime_ns for path in folder.documents()} == before


def test_a_call_adds_to_what_is_there(finished, files, encoder_folder, tmp_path, no_report, monkeypatch):
    """Another seed of one method, without posthoc, on a folder of two methods: nothing of theirs is lost."""
    devices = []
    monkeypatch.setattr("ebmcal.pipeline.cell.best_device", lambda: devices.append("cpu") or "cpu")
    shutil.copytree(finished[0].root, tmp_path / "run")
    before = read_document(finished[0])
    books = write_csv(tmp_path / "books.csv", [(text,) for text in SENTENCES[:9]], columns=("text",))
    changes = {"methods": ["baseline"], "seeds": [2], "posthoc": ["isotonic"], "ood": {"books": books}}
    again = partial(run, settings(files, encoder_folder, tmp_path, **changes))
    folder = again(Reporter())
    document, recorded = read_document(folder), yaml.safe_load(folder.config.read_text())
    cells = {(row["method"], row["seed"]) for row in document["rows"] if row["seed"] is not None}  # not over seeds
    assert cells == {("baseline", 1), ("hidden", 1), ("baseline", 2)}
    assert (recorded["methods"], recorded["seeds"]) == (["baseline", "hidden"], [1, 2])
    assert recorded["posthoc"] == ["temperature", "isotonic"]
    assert document["seeds"] == [1, 2]
    assert document["training"]["hidden-seed1"] == before["training"]["hidden-seed1"]
    assert (document["noise"], document["noise_source"]) == (before["noise"], before["noise_source"])
    assert devices == ["cpu", "cpu"]  # the finetuned encoder and the untouched one

    first = folder.predictions(Cell("baseline", 2), "ood_books").read_bytes()
    write_csv(books, [(text,) for text in SENTENCES[9:20]], columns=("text",))
    lines = Lines()
    again(lines)
    assert "baseline-seed2: the texts of ood_books are others than before: predicted again" in lines.lines
    assert folder.predictions(Cell("baseline", 2), "ood_books").read_bytes() != first
    again(lines := Lines())
    assert not [line for line in lines.lines if "again" in line]


def test_a_run_with_a_cache_that_it_may_not_write(finished, files, encoder_folder, tmp_path, no_report, monkeypatch):
    """What the shared cache has is used, what it lacks is made in the run folder."""
    shared = finished[0].root.parent / "cache"
    before = {path: path.stat().st_mtime_ns for path in shared.rglob("*")}
    monkeypatch.setattr("ebmcal.pipeline.cache.can_write", lambda folder: folder != shared)
    books = write_csv(tmp_path / "books.csv", [(text,) for text in SENTENCES[:9]], columns=("text",))
    changes = {"cache_dir": shared, "noise_samples": 60, "ood": {"books": books}, "methods": ["hidden"], "steps": 2}
    lines = Lines()
    folder = run(settings(files, encoder_folder, tmp_path, **changes), lines)
    assert read_document(folder)["noise"]["gaps:small"]["n_samples"] == 32
    assert not [line for line in lines.lines if "damaged" in line]
    assert {path: path.stat().st_mtime_ns for path in shared.rglob("*")} == before
    assert {path.name for path in (folder.cache / "noise_lm").iterdir() if path.is_symlink()}
