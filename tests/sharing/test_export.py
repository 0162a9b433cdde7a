"""ONNX: says what the model says, in a process with neither torch nor ebmcal; what does not agree is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from ebmcal.calibrators import Isotonic, TemperatureScaling, attach
from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.sharing.export import export
from ebmcal.sharing.session import INT8, Session
from small_runs import write_csv
from tiny_models import SENTENCES, make_encoder, make_wordpiece, save_encoder

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are few")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_alone.py"
NAMES = ("bad", "fair", "good")
NAMED = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
LONG = " ".join(SENTENCES[:20])  # more tokens than the model takes


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny classifier with a temperature, and a file of texts with labels."""
    folder = save_encoder(tmp_path_factory.mktemp("export") / "model", **NAMED)
    found = load(folder).predict(SENTENCES)
    labels = (found.logits / 2 + np.random.default_rng(0).gumbel(size=found.logits.shape)).argmax(axis=1)
    attach(folder, TemperatureScaling().fit(found.logits, labels))
    rows = [(text, NAMES[i]) for text, i in zip(SENTENCES, labels, strict=True)]
    write_csv(folder.parent / "rows.csv", [*rows, (LONG, "good")])
    return folder


@pytest.fixture(scope="module")
def exported(model):
    done = export(model, model.parent / "onnx", energy=True, int8=True, on=model.parent / "rows.csv",
                  label_column="label")  # fmt: skip
    return done


def test_it_says_what_the_model_says(model, exported):
    texts = ["a joy", *SENTENCES[::7], LONG]
    theirs = load(model).predict(texts)
    assert theirs.meta["calibrator"]["name"] == "temperature"
    ours = Session.open(exported.folder).predict([(text, None) for text in texts])
    powers = np.exp(ours["logits"])
    np.testing.assert_allclose(powers / powers.sum(axis=1, keepdims=True), theirs.probs, atol=1e-5)
    np.testing.assert_allclose(ours["energy"], theirs.energies, rtol=1e-5)
    record = json.loads((exported.folder / "export.json").read_text())
    assert record["n_texts"] == len(SENTENCES) + 1
    assert record["temperature"] == load(model).calibrator.temperature_ != 1
    assert all(difference < 1e-5 for difference in record["largest_difference"].values())


def test_int8_comes_with_what_it_costs(model, exported):
    found = exported.document["int8"]
    small = Session.open(exported.folder, INT8).predict([(text, None) for text in SENTENCES])["logits"]
    assert found["same_label"] >= 0.9
    assert found["n_labelled"] == len(SENTENCES) + 1
    assert set(found["change"]) == {"accuracy", "ece_top_label", "ece_classwise", "nll"}
    plain, int8 = (found["metrics"][kind]["nll"]["value"] for kind in ("float32", "int8"))
    assert found["change"]["nll"]["difference"] == pytest.approx(int8 - plain)
    full = Session.open(exported.folder).predict([(text, None) for text in SENTENCES])["logits"]
    assert 0 < np.abs(small - full).max() < 1
    assert "int8" in str(exported)
    assert "nll" in str(exported)


def test_the_example_needs_neither_torch_nor_ebmcal(model, exported, tmp_path):
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'transformers', 'ebmcal'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    command = [sys.executable, str(EXAMPLE), str(exported.folder), SENTENCES[0], SENTENCES[50]]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = load(model).predict([SENTENCES[0], SENTENCES[50]])
    for line, probs, energy in zip(done.stdout.splitlines(), theirs.probs, theirs.energies, strict=True):
        assert f"{NAMES[probs.argmax()]} {probs.max():.3f}" in line
        assert f"energy {energy:.2f}" in line


def test_what_does_not_agree_is_not_written(model, tmp_path, monkeypatch):
    import ebmcal.sharing.export as module

    monkeypatch.setattr(module, "_write_files", lambda aside, *_: (aside / "model.onnx").touch())

    class Wrong:
        @staticmethod
        def open(folder, name="model.onnx"):
            return Wrong()

        def predict(self, rows, progress):
            return {"logits": np.zeros((len(rows), 3))}

    monkeypatch.setattr(module, "Session", Wrong)
    with pytest.raises(EbmcalError, match="does not say what the model says: probabilities differ by"):
        export(model, tmp_path / "out", on=SENTENCES[:5])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_scalar_energy_and_pairs(tmp_path):
    energy = EnergyClassifier(make_encoder("roberta", **NAMED), "scalar")
    energy.save_pretrained(tmp_path / "model")
    make_wordpiece().save_pretrained(tmp_path / "model")
    pairs = [(text, "was never dull") for text in SENTENCES[:12]]
    done = export(tmp_path / "model", tmp_path / "out", energy=True, on=pairs)
    assert set(done.document["largest_difference"]) == {"probabilities", "energy"}
    assert "not calibrated" in str(done)
    ours = Session.open(tmp_path / "out").predict(pairs)["energy"]
    np.testing.assert_allclose(ours, load(tmp_path / "model").energy(pairs), rtol=1e-4, atol=1e-5)


def test_what_is_refused(model, exported, tmp_path):
    with pytest.raises(EbmcalError, match="holds an export already"):
        export(model, exported.folder)
    with pytest.raises(EbmcalError, match="no texts to check the export on"):
        export(model, tmp_path / "out")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(EbmcalError, match="holds other things"):
        export(model, tmp_path / "photos", overwrite=True)
    with pytest.raises(EbmcalError, match="at least one text"):
        export(model, tmp_path / "out", max_rows=0)
    other = load(model).calibrate((SENTENCES, [NAMES[i % 3] for i in range(len(SENTENCES))]), Isotonic())
    with pytest.raises(EbmcalError, match="calibrated by isotonic"):
        export(other, tmp_path / "out", on=SENTENCES)
    assert not (tmp_path / "out").exists()


def test_what_takes_no_model_is_refused_before_one_is_loaded(model, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr("ebmcal.sharing.export.load", never)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").touch()
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "export.json").touch()
    rows = model.parent / "rows.csv"
    for folder, options, words in (
        ("mine", {"on": rows}, "holds other things"),
        ("done", {"on": rows}, "--overwrite replaces it"),
        ("new", {"on": tmp_path / "absent.csv"}, "does not exist"),
        ("new", {}, "not in the folder of a run"),
        ("new", {"on": rows, "max_rows": 0}, "--max-rows"),
    ):
        with pytest.raises(EbmcalError, match=words):
            export(model, tmp_path / folder, **options)
