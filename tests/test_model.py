"""A model on texts: whatever they come in, the calibrator that is kept with it, and a temperature in its weights."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import ebmcal
from ebmcal.calibrators import Isotonic, TemperatureScaling, attach
from ebmcal.calibrators.in_model import attach_folded
from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.models.classifier import CARD_FILE, EnergyClassifier
from ebmcal.storage.atomic import write_json
from small_runs import write_csv
from tiny_models import SENTENCES, save_encoder

TEXTS = ["a fine film", "a dull film", "fine"]
NAMES = ("bad", "fair", "good")


@pytest.fixture
def folder(tmp_path):
    """A tiny classifier whose classes have names."""
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    return save_encoder(tmp_path / "model", **names)


@pytest.fixture
def file(tmp_path):
    return write_csv(tmp_path / "new.csv", [(text,) for text in TEXTS], ("text",))


@pytest.fixture
def held_out(folder):
    """Texts with labels that the model is a little too shy about."""
    drawn = 3 * load(folder).predict(SENTENCES).logits + np.random.default_rng(0).gumbel(size=(len(SENTENCES), 3))
    return SENTENCES, [NAMES[i] for i in drawn.argmax(axis=1)]


def temperature(n_classes=3):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, n_classes))
    return TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


def same(a, b):
    np.testing.assert_array_equal(a.logits, b.logits)
    np.testing.assert_array_equal(a.energies, b.energies)
    assert a.texts == b.texts
    assert a.text_pairs == b.text_pairs
    assert a.ids.tolist() == b.ids.tolist()
    assert a.label_names == b.label_names


def test_predictions_have_names_probabilities_and_energies(folder):
    p = ebmcal.load(folder).predict(TEXTS)
    assert p.label_names == NAMES
    assert p.labels_.tolist() == [NAMES[i] for i in p.probs.argmax(axis=1)]
    np.testing.assert_allclose(p.probs.sum(axis=1), 1)
    assert p.energies.shape == (3,)
    assert p.labels.tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(ebmcal.load(folder).predict_proba(TEXTS), p.probs)
    np.testing.assert_array_equal(ebmcal.load(folder).energy(TEXTS), p.energies)


def test_predictions_are_those_of_transformers(folder):
    from transformers import pipeline

    theirs = pipeline("text-classification", model=str(folder), top_k=None)(TEXTS)
    ours = load(folder).predict_proba(TEXTS)
    for row, scores in zip(ours, theirs, strict=True):
        assert dict(zip(NAMES, row, strict=True)) == pytest.approx({s["label"]: s["score"] for s in scores}, abs=1e-5)


def test_whatever_texts_come_in_the_predictions_are_the_same(folder, file):
    import datasets
    import pandas as pd
    import pyarrow as pa

    model = load(folder)
    want = model.predict(TEXTS)
    given = [
        file, str(file), tuple(TEXTS), iter(TEXTS), (text for text in TEXTS), np.array(TEXTS), pd.Series(TEXTS),
        {"text": TEXTS}, pd.DataFrame({"text": TEXTS}), pa.table({"text": TEXTS}),
        datasets.Dataset.from_dict({"text": TEXTS}),
    ]  # fmt: skip
    for texts in given:
        same(model.predict(texts), want)
    assert model.predict(file).meta["file"] == str(file)
    assert "file" not in want.meta


def test_pairs(folder):
    model = load(folder)
    pairs = [(text, "was never dull") for text in TEXTS]
    p = model.predict(pairs)
    assert p.text_pairs == ["was never dull"] * 3
    columns = {"a": [a for a, _ in pairs], "b": [b for _, b in pairs]}
    same(model.predict(columns, text_column="a", text_pair_column="b"), p)
    same(model.predict([list(pair) for pair in pairs]), p)
    assert not np.allclose(p.logits, model.predict(TEXTS).logits)


def test_labels_come_along(folder):
    model = load(folder)
    given = [(TEXTS, ["good", "bad", "fair"]), {"text": TEXTS, "label": ["good", "bad", "fair"]}]
    for data in given:
        assert model.predict(data, label_column="label").labels.tolist() == [2, 0, 1]
    assert model.predict((TEXTS, [2, 0, 1])).labels.tolist() == [2, 0, 1]


def test_a_stream_takes_a_chunk_at_a_time(folder):
    taken = []

    def texts():
        for text in SENTENCES * 10:
            taken.append(text)
            yield text

    model = load(folder)
    stream = model.stream(texts(), n_rows=50)
    first = next(stream)
    assert len(taken) == first.n_rows == 50
    rest = list(stream)
    assert [p.n_rows for p in rest] == [50] * 23
    assert [i for p in (first, *rest) for i in p.ids] == [str(i) for i in range(1200)]
    whole = model.predict(SENTENCES * 10)
    np.testing.assert_allclose(np.concatenate([p.logits for p in (first, *rest)]), whole.logits, atol=1e-5)
    with pytest.raises(EbmcalError, match="n_rows is 0"):
        next(model.stream(TEXTS, n_rows=0))


def test_weights_are_loaded_once(folder, monkeypatch):
    model = load(folder)
    monkeypatch.setattr(EnergyClassifier, "from_pretrained", lambda *a, **k: pytest.fail("loaded again"))
    model.predict(TEXTS)
    model.energy(TEXTS)


def test_nothing_is_printed_unless_asked(folder, capfd):
    model = load(folder)
    model.predict(TEXTS)
    assert capfd.readouterr() == ("", "")
    model.predict(TEXTS, progress=True)
    shown = capfd.readouterr()
    assert "model on 3 texts" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "no text came"),
        ("a fine film", r"no file 'a fine film'.*\[text\]"),
        ("films" * 100, "no file"),
        ("absent.csv", "absent.csv"),
        ([1, 2], r"Row 0 is 1 \(int\)"),
        (["a", None], r"Row 1 is None"),
        (["a", ("b", "c")], "Row 1 is a pair and row 0 is a single text"),
        ([("a", "b", "c")], "Row 0 is"),
        (("a", "b"), "Two strings"),
        (3, "accepted are"),
        ({"txt": ["a"]}, "Did you mean"),
    ],
)
def test_bad_texts(folder, texts, words):
    with pytest.raises(EbmcalError, match=words):
        load(folder).predict(texts)


def test_an_empty_text_is_a_text(folder):
    assert load(folder).predict([""]).n_rows == 1


def test_the_calibrator_in_the_folder_is_applied_and_said(folder, file):
    raw, calibrator = load(folder).predict(file), temperature()
    attach(folder, calibrator)
    p = load(folder).predict(file)
    assert p.meta["calibrator"]["name"] == "temperature"
    np.testing.assert_allclose(p.probs, calibrator.predict_proba(raw.logits))
    assert "calibrator" not in load(folder).predict(file, calibrated=False).meta


def test_folding_changes_logits_and_not_energies_and_another_calibrator_may_follow(folder, file):
    before, calibrator = load(folder).predict(file), temperature()
    attach_folded(folder, calibrator)
    after = load(folder).predict(file)
    np.testing.assert_allclose(after.logits, before.logits / calibrator.temperature_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after.energies, before.energies, rtol=1e-4)
    np.testing.assert_allclose(load(folder).predict(file, calibrated=False).energies, before.energies, rtol=1e-4)
    np.testing.assert_allclose(load(folder).energy(TEXTS), before.energies, rtol=1e-4)
    attach(folder, calibrator)
    assert load(folder).predict(file).meta["calibrator"]["name"] == "temperature"


def test_calibrate_and_save(folder, held_out, tmp_path):
    plain = load(folder)
    model = plain.calibrate(held_out)
    assert plain.calibrator is None
    fitted = TemperatureScaling().fit_predictions(plain.predict(held_out))
    assert model.calibrator.temperature_ == fitted.temperature_
    model.save(tmp_path / "saved")
    assert not (folder / "calibrator.json").exists()
    again = load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    np.testing.assert_array_equal(again.predict(TEXTS, calibrated=False).logits, plain.predict(TEXTS).logits)
    assert "calibrated by temperature" in repr(again)


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_calibrate_takes_files_predictions_and_other_calibrators(folder, held_out, tmp_path):
    model = load(folder)
    file = write_csv(tmp_path / "held_out.csv", zip(*held_out, strict=True), ("review", "stars"))
    want = model.calibrate(held_out, "isotonic").predict_proba(TEXTS)
    for data in (model.predict(held_out), {"review": held_out[0], "stars": held_out[1]}, file):
        names = {} if not isinstance(data, dict | type(file)) else {"text_column": "review", "label_column": "stars"}
        for calibrator in ("isotonic", Isotonic()):
            np.testing.assert_array_equal(model.calibrate(data, calibrator, **names).predict_proba(TEXTS), want)


def test_save_in_place_and_fold(folder, held_out, tmp_path):
    model = load(folder).calibrate(held_out)
    model.save(tmp_path / "folded", fold=True)
    folded = load(tmp_path / "folded")
    assert folded.calibrator is None
    assert folded.folded_temperature == pytest.approx(model.calibrator.temperature_)
    np.testing.assert_allclose(folded.predict_proba(TEXTS), model.predict_proba(TEXTS), atol=1e-5)
    np.testing.assert_allclose(folded.energy(TEXTS), model.energy(TEXTS), rtol=1e-4)
    folded.save(tmp_path / "copy")
    assert load(tmp_path / "copy").folded_temperature == folded.folded_temperature
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    assert model.save(folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights
    assert load(folder).calibrator.temperature_ == model.calibrator.temperature_


def test_what_save_and_calibrate_refuse(folder, held_out, tmp_path):
    model = load(folder)
    with pytest.raises(EbmcalError, match="no temperature to fold"):
        model.save(tmp_path / "x", fold=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(EbmcalError, match="not a model folder"):
        model.save(tmp_path / "photos")
    with pytest.raises(EbmcalError, match="without labels"):
        model.calibrate(SENTENCES)
    calibrated = model.calibrate(held_out)
    with pytest.raises(EbmcalError, match="calibrated already"):
        calibrated.calibrate(calibrated.predict(TEXTS))
    other = ebmcal.Predictions([0, 1], ("a", "b"), logits=[[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(EbmcalError, match="the model has bad, fair, good"):
        model.calibrate(other)
    with pytest.raises(EbmcalError, match="Unknown calibrator 'temprature'"):
        model.calibrate(held_out, "temprature")
    with pytest.raises(EbmcalError, match="predictions for the training rows"):
        model.calibrate(replace(model.predict(held_out), meta={"split": "train"}))
    model.calibrate(replace(model.predict(held_out), meta={"split": "train"}), allow_mismatch=True)
    with pytest.raises(EbmcalError, match=r"held_out: the labels are all of one class \(bad\)"):
        model.calibrate((SENTENCES, ["bad"] * len(SENTENCES)))


@pytest.mark.filterwarnings("ignore:.*rows are few", "ignore:.*did not settle")
def test_a_temperature_by_energy_is_applied_by_the_model(folder, held_out, tmp_path):
    model = load(folder).calibrate(held_out, "energy-temperature")
    model.save(tmp_path / "saved")
    again, plain = load(tmp_path / "saved").predict(TEXTS), load(folder).predict(TEXTS)
    np.testing.assert_array_equal(again.probs, model.calibrator.predict_proba(plain.logits, plain.energies))
    assert again.meta["calibrator"]["name"] == "energy-temperature"


@pytest.mark.filterwarnings("ignore:.*rows are few")
def test_calibrating_a_folded_model_again_does_not_apply_the_temperature_twice(folder, held_out, tmp_path):
    model = load(folder).calibrate(held_out)
    folded = load(model.save(tmp_path / "folded", fold=True))
    with pytest.raises(EbmcalError, match="apply a temperature twice"):
        folded.calibrate(load(folder).predict(held_out))
    again = folded.calibrate(held_out)
    assert again.calibrator.temperature_ == pytest.approx(1, rel=1e-3)
    again.save(tmp_path / "folded")
    np.testing.assert_allclose(load(tmp_path / "folded").predict_proba(TEXTS), model.predict_proba(TEXTS), atol=1e-4)


def test_what_is_no_classifier(folder, tmp_path):
    with pytest.raises(EbmcalError, match="not a model folder"):
        load(tmp_path / "nothing")
    with pytest.raises(EbmcalError, match="not a model folder"):
        load("runs/a/checkpoints/hidden-seed1/model")
    with pytest.raises(EbmcalError, match="did not come from the hub"):
        load("somebody/no-such-model")
    config = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"architectures": ["BertModel"]}, "BertModel, which has no classes yet"),
        ({"problem_type": "regression"}, "regression"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(EbmcalError, match=words):
            load(folder)


def test_a_hub_name_is_a_folder_on_this_machine(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **options: asked.append((name, options)) or str(folder)
    )
    same(load("somebody/classifier").predict(TEXTS), load(folder).predict(TEXTS))
    assert asked[0][0] == "somebody/classifier"
    assert not any(p.endswith((".bin", ".py", ".pkl")) for p in asked[0][1]["allow_patterns"])


def test_half_a_character_is_no_text(folder):
    model = ebmcal.load(folder)
    with pytest.raises(EbmcalError, match="Row 1 has a lone surrogate"):
        model.predict(["a text", "half \ud83d of it"])
    with pytest.raises(EbmcalError, match="Row 0 has a lone surrogate"):
        model.predict([("a text", "half \ud83d of it")])


def test_pairs_and_single_texts_are_not_the_same(folder):
    write_json(folder / CARD_FILE, {"energy": "hidden", "is_pair": False})
    with pytest.raises(EbmcalError, match=r"was trained on single texts, and pairs came. Give one text a row"):
        ebmcal.load(folder).predict([("a text", "another")])
    write_json(folder / CARD_FILE, {"energy": "hidden", "is_pair": True})
    with pytest.raises(EbmcalError, match=r"was trained on pairs of texts, and single texts came. Give \(text, text\)"):
        ebmcal.load(folder).predict(["a text"])
