"""Runs from Python: data in memory, a temporary folder, silence, and the same numbers as on the command line."""

import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import ebmcal
from ebmcal.cli import main
from ebmcal.config import load_config, save_config
from ebmcal.errors import EbmcalError
from ebmcal.runs import _prepared
from small_runs import LABELS, own_rows, settings, write_csv
from tiny_models import SENTENCES


@pytest.fixture(autouse=True, scope="module")
def users_cache(tmp_path_factory):
    """Where a user's cache would be; nothing goes there."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EBMCAL_CACHE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(home))
        yield home


@pytest.fixture(autouse=True)
def no_cache_of_the_test(users_cache, monkeypatch):
    """The API keeps its cache in the run folder: the cache of the other tests would hide that it does."""
    monkeypatch.delenv("EBMCAL_CACHE", raising=False)


def given(encoder_folder, **changes):
    """Small settings as keyword arguments."""
    config = settings("absent.csv", encoder_folder, Path("absent"))
    names = {name for name in config.model_fields_set if "noise_" not in name} - {"train", "output", "cache_dir"}
    return {name: getattr(config, name) for name in names} | {"noise": "splice"} | changes


def two_seeds(encoder_folder):
    return given(encoder_folder, methods=["hidden"], seeds=[1, 2])


def columns(n=120):
    texts, labels = zip(*own_rows(n), strict=True)
    return list(texts), list(labels)


@pytest.fixture(scope="module")
def finished(encoder_folder, tmp_path_factory):
    """A run of two seeds on texts in memory."""
    output = tmp_path_factory.mktemp("api") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("EBMCAL_CACHE", raising=False)
        return ebmcal.run(train=columns(), ood={"other": SENTENCES[:20]}, output=output, **two_seeds(encoder_folder))


def test_the_results_are_what_the_table_shows(finished):
    together = {row["posthoc"] for row in finished.results if row.get("n_members") == 2}
    assert together == {"ensemble", "ensemble + temperature (dev)"}
    rows = [row for row in finished.results if row["seed"] is not None]
    assert {(row["method"], row["seed"]) for row in rows} == {("hidden", 1), ("hidden", 2)}
    assert {row["posthoc"] for row in rows} == {None, "temperature (train)", "temperature (dev)"}
    for row in rows:
        figure = row["metrics"]["ece_classwise"]
        assert figure["low"] <= figure["value"] <= figure["high"]
    accuracies = [row["metrics"]["accuracy"]["value"] for row in rows if not row["posthoc"]]
    shown = {entry.value: row for row in finished.table().tables[0].rows for entry in row.entries[:1]}
    assert shown["hidden"].entries[1].value == pytest.approx(np.mean(accuracies))
    shown = str(finished.table())
    assert "hidden + temperature (dev)" in shown
    assert "hidden + ensemble" in shown
    assert "texts in memory" in shown
    assert finished.advice
    assert finished.report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_models_and_predictions_of_a_run(finished):
    p = finished.predictions("hidden", "test", seed=2)
    model = finished.model("hidden", seed=2)
    np.testing.assert_allclose(model.predict(p.texts).logits, p.logits, atol=1e-5)
    assert model.label_names == p.label_names
    assert sorted(model.label_names) == sorted(LABELS)
    assert finished.model("hidden").folder.parent.name == "hidden-seed1"
    assert finished.predictions("hidden", "ood_other").texts == SENTENCES[:20]
    calibrated = model.calibrate(finished.predictions("hidden", "calibration", seed=2), "platt")
    assert calibrated.predict(["so"]).meta["calibrator"]["name"] == "platt"


def test_what_is_not_in_a_run(finished, tmp_path):
    with pytest.raises(EbmcalError, match=r"Say which method: .* has none yet"):
        ebmcal.Run(tmp_path).model()
    with pytest.raises(EbmcalError, match="Did you mean 'hidden'"):
        finished.model("hiden")
    with pytest.raises(EbmcalError, match="no hidden of seed 3; there is 1, 2"):
        finished.model("hidden", seed=3)
    with pytest.raises(EbmcalError, match="Unknown split of hidden-seed1 'tests'"):
        finished.predictions("hidden", "tests")
    with pytest.raises(EbmcalError, match="not a run folder"):
        ebmcal.open_run(tmp_path)


def test_a_run_is_opened_again(finished):
    again = ebmcal.open_run(str(finished.folder))
    assert again.results == finished.results
    assert repr(again) == repr(finished)
    assert "hidden-seed2" in repr(again)


def test_everything_is_in_the_folder(finished, users_cache):
    """Data in memory and the cache too: the folder is all there is, and the command line can go on with it."""
    names = {path.name for path in finished.folder.parent.iterdir()}
    assert names == {"run"}
    config = load_config(finished.folder / "config.yaml", {})
    assert config.train.parent == finished.folder / "data"
    assert config.cache_dir == finished.folder / "cache"
    assert not (users_cache / "ebmcal").exists()


def test_the_same_call_again_finds_it_done(finished, encoder_folder):
    weights = {p: p.stat().st_mtime_ns for p in finished.folder.rglob("*.safetensors")}
    again = ebmcal.run(train=columns(), output=finished.folder, **two_seeds(encoder_folder))
    assert {p: p.stat().st_mtime_ns for p in again.folder.rglob("*.safetensors")} == weights
    with pytest.raises(EbmcalError, match="have changed since"):
        ebmcal.run(train=columns(100), output=finished.folder, **given(encoder_folder))
    with pytest.raises(EbmcalError, match="belongs to another config"):
        ebmcal.run(train=columns(), output=finished.folder, **given(encoder_folder, steps=7))


def test_command_line_and_api_give_the_same_to_the_bit(encoder_folder, tmp_path, monkeypatch, capfd):
    file, quick = write_csv(tmp_path / "moods.csv", own_rows()), {"methods": ["hidden"]}
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "cache"))
    api = ebmcal.run(train=file, output=tmp_path / "api", **given(encoder_folder, **quick))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "other-cache"))
    flags = {"train": file, "output": tmp_path / "cli", **given(encoder_folder, **quick)}
    words = [(f"--{k.replace('_', '-')}", ",".join(v) if isinstance(v, list) else str(v)) for k, v in flags.items()]
    with pytest.raises(SystemExit) as stop:
        main(["run", *(word for pair in words for word in pair)])
    assert not stop.value.code
    shown = capfd.readouterr()
    assert "hidden" in shown.out
    documents = [json.loads((tmp_path / who / "metrics.json").read_text()) for who in ("api", "cli")]
    for document in documents:
        for training in document["training"].values():
            training.pop("seconds")
        document.pop("noise")  # its cost in seconds is in it
    assert documents[0] == documents[1]
    names = sorted(p.relative_to(api.folder) for p in (api.folder / "predictions").rglob("*.parquet"))
    assert len(names) == 4
    for name in [*names, Path("checkpoints/hidden-seed1/model/model.safetensors")]:
        assert (api.folder / name).read_bytes() == (tmp_path / "cli" / name).read_bytes(), name
    predicted_the_same(api, file, tmp_path, capfd)


def predicted_the_same(run, file, tmp_path, capfd):
    model = run.model("hidden")
    model.predict(file, label_column="label").write(tmp_path / "api.parquet")
    with pytest.raises(SystemExit):
        main(["predict", str(model.folder), str(file), "--label-column", "label", "-o", str(tmp_path / "cli.parquet")])
    ours, theirs = (ebmcal.Predictions.read(tmp_path / f"{who}.parquet") for who in ("api", "cli"))
    np.testing.assert_allclose(ours.probs, theirs.probs, atol=1e-6)  # the file has probabilities, in place of logits
    np.testing.assert_array_equal(ours.energies, theirs.energies)
    assert ours.labels.tolist() == theirs.labels.tolist()


def test_training_alone_by_both(encoder_folder, tmp_path, monkeypatch, capfd):
    file = write_csv(tmp_path / "moods.csv", own_rows())
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "cache"))
    common = {"methods": ["baseline"], "steps": 2}
    api = ebmcal.train(train=file, output=tmp_path / "api", **given(encoder_folder, **common))
    with pytest.raises(EbmcalError, match="not finished"):
        _ = api.results
    values = given(encoder_folder, **common) | {"train": file, "output": tmp_path / "cli"}
    (tmp_path / "settings.yaml").write_text(
        json.dumps({k: v if isinstance(v, list | int | float) else str(v) for k, v in values.items()})
    )
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "settings.yaml")])
    assert capfd.readouterr().out.split() == [str(tmp_path / "cli/checkpoints/baseline-seed1/model")]
    weights = [(tmp_path / who / "checkpoints/baseline-seed1/model/model.safetensors") for who in ("api", "cli")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert api.model().predict(["so"]).n_rows == 1


def test_without_output_a_run_lives_as_long_as_its_object(encoder_folder, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = ebmcal.train(train=columns(), **given(encoder_folder, methods=["baseline"], steps=1))
    folder, model = run.folder, run.model()
    assert folder.is_relative_to(tmp_path)
    del run
    gc.collect()
    model.save(tmp_path / "kept")  # the model keeps the folder it copies from
    del model
    gc.collect()
    assert not folder.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_a_config_and_what_goes_over_it(encoder_folder, tmp_path):
    file = write_csv(tmp_path / "moods.csv", own_rows())
    config = settings(file, encoder_folder, tmp_path, steps=9)
    for base in (config, tmp_path / "c.yaml", str(tmp_path / "c.yaml")):
        (tmp_path / "c.yaml").write_text(save_config(config))
        prepared, _, owner = _prepared(base, {"seeds": [4]}, False)
        assert (prepared.steps, prepared.seeds, prepared.output) == (9, [4], config.output)
        assert prepared.cache_dir == config.cache_dir
        assert owner is None


@pytest.mark.parametrize("shared", [False, True])
def test_where_the_cache_is(tmp_path, monkeypatch, shared):
    prepared, *_ = _prepared(None, {"train": tmp_path / "x.csv", "output": tmp_path / "run"}, shared)
    assert prepared.cache_dir == (None if shared else tmp_path / "run" / "cache")
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "env"))
    assert _prepared(None, {"train": tmp_path / "x.csv", "output": tmp_path / "run"}, shared)[0].cache_dir is None


def test_columns_of_data_in_memory(tmp_path):
    pairs = [("a", "b"), ("c", "d")]
    prepared, *_ = _prepared(None, {"train": (pairs, [0, 1]), "output": tmp_path / "pairs"}, False)
    assert (prepared.text_column, prepared.text_pair_column, prepared.label_column) == ("text", "text_pair", "label")
    table = {"review": ["a", "b"], "stars": [1, 2], "other": [None, None]}
    named = {"text_column": "review", "label_column": "stars"}
    prepared, *_ = _prepared(None, {"train": table, "test": table, "output": tmp_path / "table", **named}, False)
    assert prepared.train == prepared.test
    assert prepared.text_column == "review"
    prepared, *_ = _prepared(None, {"train": (["a", "b"], [0, 1]), "task": "sst2", "output": tmp_path / "task"}, False)
    assert prepared.text_column == "sentence"


MISTAKES = {
    "a setting": ({"metods": ["hidden"]}, "Did you mean 'methods'"),
    "two at once": ({"noise_ratio": 0, "methods": ["hiden"]}, "(?s)noise-ratio.*hiden"),
    "no data": ({}, "No data was named"),
    "texts without labels": ({"train": ["a", "b"]}, "without labels"),
    "a number": ({"train": 3}, "accepted are"),
    "an absent column": ({"train": {"text": ["a"], "stars": [1]}}, "label"),
    "an absent file": ({"train": "absent.csv"}, "absent.csv"),
    "a config": ({"config": "absent.yaml"}, "absent.yaml does not exist"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_those_of_the_command_line(mistake, encoder_folder, tmp_path):
    changes, words = MISTAKES[mistake]
    with pytest.raises(EbmcalError, match=words):
        ebmcal.run(**{"output": tmp_path / "run"} | given(encoder_folder) | changes)


def test_a_run_that_was_stopped_at_once_goes_on(encoder_folder, tmp_path):
    """Data and cache come before anything says that the folder is a run's."""
    for name in ("data", "cache"):
        (tmp_path / name).mkdir()
    common = given(encoder_folder, methods=["baseline"], steps=1)
    assert ebmcal.train(train=columns(), output=tmp_path, **common).model().predict(["so"]).n_rows == 1


def test_a_folder_of_others_is_left_alone(encoder_folder, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(EbmcalError, match="is no run folder"):
        ebmcal.run(train=columns(), output=tmp_path, **given(encoder_folder))
    assert os.listdir(tmp_path) == ["thesis.tex"]
