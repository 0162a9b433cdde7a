"""`ebmcal.decide` with distances: measured by the model, kept with the rule, used by predict and serve alike."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

import ebmcal
from ebmcal.cli import main
from ebmcal.decisions import RULE_FILE, Rule, attached_rule
from ebmcal.decisions.unusual import TrainingFeatures
from ebmcal.errors import EbmcalError
from ebmcal.metrics.distances import DISTANCES
from ebmcal.model import load
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.serve import create_app
from ebmcal.storage.atomic import write_json
from ebmcal.streaming import predict_file
from serving import NAMES, call, running, save_classifier
from tiny_models import SENTENCES

TRAINING, HELD_OUT, NEW = SENTENCES[:60], SENTENCES[60:], ["a joy", "broken phone novel", "the the the the song"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, its training texts as a file, and its predictions for held-out rows."""
    place = tmp_path_factory.mktemp("deciding")
    model = load(save_classifier(place / "model"))
    lines = [f'"{text}",{NAMES[i % 3]}' for i, text in enumerate(TRAINING)]
    (place / "train.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    labelled = {"text": HELD_OUT, "label": [NAMES[i % 3] for i in range(60)]}
    model.predict(labelled, label_column="label", calibrated=False).write(place / "held_out.parquet")
    return place


@pytest.mark.parametrize("by", DISTANCES)
def test_distances_are_measured_kept_and_used_everywhere(place, tmp_path, by):
    rule = ebmcal.decide(place / "model", place / "held_out.parquet", unusual_by=by, training=place / "train.csv")
    model = load(place / "model")
    features = model.features([(text, None) for text in TRAINING])
    kept = TrainingFeatures.of(features, np.arange(60) % 3)
    far = kept.distance(by)(model.features([(text, None) for text in [*HELD_OUT, *NEW]]))
    np.testing.assert_allclose(rule.unusual.scores, np.sort(far[:60]), rtol=1e-5)
    want = np.array([(1 + (far[:60] >= one).sum()) / 61 for one in far[60:]])
    again = attached_rule(place / "model")
    assert again.to_json() == rule.to_json()
    found = model.predict(NEW)
    np.testing.assert_allclose(found.distances[by], far[60:], rtol=1e-4)
    np.testing.assert_allclose(again.decide(found).p_values, want)
    (tmp_path / "new.txt").write_text("\n".join(NEW))
    predict_file(model, tmp_path / "new.txt", tmp_path / "out.jsonl", rule=again)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["unusual_p"] for row in rows] == pytest.approx(want)
    assert [row[f"distance_{by}"] for row in rows] == pytest.approx(far[60:], rel=1e-4)
    with running(create_app({"m": model})) as app:
        results = call(app, "POST", "/v1/classify", json={"inputs": NEW}).json()["results"]
    assert [result["unusual_p"] for result in results] == pytest.approx(want)
    assert "distance to the" in " ".join(again.describe())
    saved = model.save(tmp_path / "saved")
    assert load(saved).rule.unusual.by == by
    other = replace(model, fitted_rule=None).fit_rule(
        {"text": HELD_OUT, "label": [NAMES[i % 3] for i in range(60)]},
        unusual_by=by, training={"text": TRAINING, "label": [NAMES[i % 3] for i in range(60)]},
    )  # fmt: skip
    np.testing.assert_allclose(other.rule.decide(other.predict(NEW)).p_values, want)


def test_the_training_texts_of_a_run_are_found(place, tmp_path):
    run = RunFolder(tmp_path / "run")
    folder = save_classifier(run.model(Cell("hidden", 1)))
    with pytest.raises(EbmcalError, match="--training FILE"):
        ebmcal.decide(folder, place / "held_out.parquet", unusual_by="knn")
    load(folder).predict(TRAINING).write(run.predictions(Cell("hidden", 1), "train"))
    assert len(ebmcal.decide(folder, place / "held_out.parquet", unusual_by="knn").unusual.training.features) == 60


def test_left_open_it_is_the_nearest_texts_where_those_are_known(place, tmp_path):
    rows, run = ebmcal.Predictions.read(place / "held_out.parquet"), RunFolder(tmp_path / "run")
    folder = save_classifier(run.model(Cell("hidden", 1)))
    assert ebmcal.decide(folder, rows).unusual.by == "energy"
    assert ebmcal.decide(folder, rows, training=place / "train.csv").unusual.by == "knn"
    load(folder).predict(TRAINING).write(run.predictions(Cell("hidden", 1), "train"))
    assert ebmcal.decide(folder, rows).unusual.by == "knn"
    assert ebmcal.decide(folder, rows, unusual_by="energy").unusual.by == "energy"
    with pytest.warns(UserWarning, match="have none.* So texts are unusual by their energy"):
        assert ebmcal.decide(folder, replace(rows, texts=None)).unusual.by == "energy"
    few = {"coverage": 0.5}
    assert ebmcal.decide(folder, rows.rows(np.arange(12)), **few).unusual is None, "12 rows promise no 5%"
    with pytest.raises(EbmcalError, match="12"):
        ebmcal.decide(folder, rows.rows(np.arange(12)), **few, unusual_by="knn")
    assert load(folder).fit_rule(rows, training=TRAINING).rule.unusual.by == "knn"


def test_a_rule_with_features_of_another_layer_is_refused(place, tmp_path):
    rule = ebmcal.decide(place / "model", place / "held_out.parquet", training=place / "train.csv")
    value = rule.to_json()
    del value["unusual"]["training"]["layer"]  # as an earlier version wrote it
    write_json(tmp_path / "rule.json", value, checked=True)
    with pytest.raises(EbmcalError, match=r"rule.json: The rule measures .* Fit it again: ebmcal decide.$"):
        Rule.read(tmp_path / "rule.json")
    with pytest.raises(SystemExit, match="0"):  # and is replaced where it was written to
        main([
            "decide", str(place / "model"), "--on", str(place / "held_out.parquet"), "--training",
            str(place / "train.csv"), "--output", str(tmp_path / "rule.json"),
        ])  # fmt: skip
    assert Rule.read(tmp_path / "rule.json").unusual.by == "knn"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"shape": [0, 16], "float16": "", "labels": []}}, "damaged"),
        ({"training": {"labels": [1]}}, "damaged"),
        ({"scores": [None]}, "damaged"),
        ({"training": {"shape": [120, 8], "labels": [0] * 120}}, "features of 8 numbers and the model of 16"),
    ],
)
def test_features_that_do_not_fit_are_refused(place, tmp_path, changes, words):
    rule = ebmcal.decide(place / "model", place / "held_out.parquet", training=place / "train.csv")
    value = rule.to_json()
    for name, change in changes.items():
        value["unusual"][name] = value["unusual"][name] | change if isinstance(change, dict) else change
    write_json(tmp_path / "rule.json", value, checked=True)
    with pytest.raises(EbmcalError, match=words):
        replace(load(place / "model"), fitted_rule=Rule.read(tmp_path / "rule.json")).predict(NEW)


def test_torch_that_cannot_be_imported_leaves_the_energy(place, tmp_path, monkeypatch):
    run, cell = RunFolder(tmp_path / "run"), Cell("hidden", 1)
    folder = save_classifier(run.model(cell))
    load(folder).predict(TRAINING).write(run.predictions(cell, "train"))
    monkeypatch.setitem(sys.modules, "ebmcal.model", None)
    with pytest.warns(UserWarning, match="cannot be imported.* So texts are unusual by their energy"):
        assert ebmcal.decide(folder, place / "held_out.parquet").unusual.by == "energy"
    with pytest.raises(EbmcalError, match="cannot be imported"):
        ebmcal.decide(folder, place / "held_out.parquet", unusual_by="knn")


def test_training_rows_of_another_model_or_kind_are_not_measured_from(place, tmp_path):
    rows, run = ebmcal.Predictions.read(place / "held_out.parquet"), RunFolder(tmp_path / "run")
    folder, train = save_classifier(run.model(Cell("hidden", 1))), run.predictions(Cell("hidden", 1), "train")
    known = load(folder).predict(TRAINING)
    for other, words in (
        (replace(known, meta=known.meta | {"weights": "0"}), "training rows of another model: its weights"),
        (replace(known, label_names=("x", "y", "z")), "x, y, z"),
        (replace(known, text_pairs=TRAINING), "held-out rows are single texts and the training rows pairs"),
    ):
        other.write(train)
        with pytest.warns(UserWarning, match=f"{words}.* So texts are unusual by their energy"):
            assert ebmcal.decide(folder, rows).unusual.by == "energy"
        with pytest.raises(EbmcalError, match=words):
            ebmcal.decide(folder, rows, unusual_by="knn")


def test_the_command_judges_by_the_same_distances(place, tmp_path, capsys):
    model = load(place / "model")
    labelled = {"text": TRAINING[:30], "label": [NAMES[i % 3] for i in range(30)]}
    model.predict(labelled, label_column="label", calibrated=False).write(tmp_path / "test.parquet")
    with pytest.raises(SystemExit, match="0"):
        main([
            "decide", str(place / "model"), "--on", str(place / "held_out.parquet"), "--unusual-by", "knn",
            "--training", str(place / "train.csv"), "--judge", str(tmp_path / "test.parquet"),
            "--output", str(tmp_path / "rule.json"),
        ])  # fmt: skip
    said = capsys.readouterr().out
    assert "0.0% are unusual" in said, "training texts are near themselves"
    rule = Rule.read(tmp_path / "rule.json")
    assert rule.unusual.training.features.dtype == np.float16
    assert (place / "model" / RULE_FILE).stat().st_size < 20_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unusual_by": "kn"}, "Did you mean 'knn'"),
        ({"unusual_by": "energy", "training": "train.csv"}, "goes with a model and with unusual_by"),
        ({"unusual_by": "knn", "training": "absent.csv"}, "absent.csv"),
        ({"unusual_by": "knn", "training": HELD_OUT}, "60 of the 60 held-out texts are among the training texts"),
        ({"unusual_by": "mahalanobis", "training": TRAINING}, "label"),
        ({"unusual_by": "knn", "training": TRAINING[:9]}, "9 training texts are too few"),
    ],
)
def test_what_is_refused(place, options, words):
    options = options | ({"training": place / t} if isinstance(t := options.get("training"), str) else {})
    before = (place / "model" / RULE_FILE).read_bytes() if (place / "model" / RULE_FILE).exists() else None
    with pytest.raises(EbmcalError, match=words):
        ebmcal.decide(place / "model", place / "held_out.parquet", **options)
    assert ((place / "model" / RULE_FILE).read_bytes() if before else None) == before


def test_predictions_without_texts_or_distances_are_refused(place):
    rows = replace(ebmcal.Predictions.read(place / "held_out.parquet"), texts=None)
    with pytest.raises(EbmcalError, match="held-out rows have none"):
        ebmcal.decide(place / "model", rows, unusual_by="knn", training=place / "train.csv")
    rule = ebmcal.decide(place / "model", place / "held_out.parquet", unusual_by="knn", training=place / "train.csv")
    with pytest.raises(EbmcalError, match="distance_knn"):
        rule.decide(rows)


def test_distances_of_other_features_are_not_the_rules(place):
    rule = ebmcal.decide(place / "model", place / "held_out.parquet", training=place / "train.csv")
    found = load(place / "model").predict(NEW)
    assert rule.unusual.can_tell(found)
    of_a_run = replace(found, meta={name: value for name, value in found.meta.items() if name != "distances"})
    assert not rule.unusual.can_tell(of_a_run)
    with pytest.raises(EbmcalError, match="were not measured by this rule"):
        rule.decide(of_a_run)
    np.testing.assert_array_equal(
        rule.decide(replace(found, meta={})).p_values, rule.decide(found).p_values, "a CSV cannot say it"
    )


def test_rows_to_judge_on_are_looked_at_before_a_rule_is_kept(place, tmp_path, capsys):
    rows = ebmcal.Predictions.read(place / "held_out.parquet")
    replace(rows, distances={"knn": np.arange(60.0)}).write(tmp_path / "far.parquet")
    replace(rows, texts=None).write(tmp_path / "bare.parquet")
    with pytest.raises(SystemExit, match="1"):
        main([
            "decide", "--on", str(tmp_path / "far.parquet"), "--unusual-by", "knn", "--judge",
            str(tmp_path / "bare.parquet"), "--output", str(tmp_path / "rule.json"),
        ])  # fmt: skip
    assert "distance_knn" in capsys.readouterr().err
    assert not (tmp_path / "rule.json").exists()


def test_rows_to_judge_on_without_texts_leave_the_energy_and_say_so(place, tmp_path, capsys):
    run, cell = RunFolder(tmp_path / "run"), Cell("hidden", 1)
    folder = save_classifier(run.model(cell))
    load(folder).predict(TRAINING).write(run.predictions(cell, "train"))
    replace(ebmcal.Predictions.read(place / "held_out.parquet"), texts=None).write(tmp_path / "bare.parquet")
    asked = ["decide", str(folder), "--on", str(place / "held_out.parquet"), "--judge", str(tmp_path / "bare.parquet")]
    with pytest.raises(SystemExit, match="0"):
        main(asked)
    said = capsys.readouterr()
    assert "to judge the rule on have no texts" in said.err
    assert "Unusual: an energy" in said.out
    with pytest.raises(SystemExit, match="1"):
        main([*asked, "--training", str(place / "train.csv")])
    assert "distance_knn" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*rows are few", "ignore:The temperature did not settle")
def test_a_rule_that_is_not_for_what_is_saved_stays_behind_with_a_word(place, tmp_path):
    ebmcal.decide(place / "model", place / "held_out.parquet", unusual_by="energy")
    model = load(place / "model")
    held_out = {"text": HELD_OUT, "label": [NAMES[i % 3] for i in range(60)]}
    calibrated = model.calibrate(held_out)
    for fold in (False, True):
        with pytest.warns(UserWarning, match="The rule to decide by is not saved: its promise is for other logits"):
            saved = calibrated.save(tmp_path / f"saved-{fold}", fold=fold)
        assert attached_rule(saved) is None
    assert attached_rule(model.save(tmp_path / "whole")) is not None
    old = json.loads((tmp_path / "whole" / RULE_FILE).read_text()) | {"format": 0}
    (tmp_path / "whole" / RULE_FILE).write_text(json.dumps(old))
    with pytest.warns(UserWarning, match="not saved: .*[Ff]it"):
        assert attached_rule(load(tmp_path / "whole").save(tmp_path / "copy")) is None
