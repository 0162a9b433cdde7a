"""ONNX export: agrees with PyTorch, runs without torch and ebmcal, and is not written if it does not agree."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import ebmcal
from ebmcal import EbmcalError, EnergyClassifier, TemperatureScaling, export_onnx
from ebmcal.calibration import make_calibrator, save_calibrator
from ebmcal.export.onnx import INT8, OnnxSession
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json
from tiny_models import SENTENCES, make_encoder, make_wordpiece, save_encoder

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are few")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_alone.py"
NAMES = ("bad", "fair", "good")
NAMED = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
LONG = " ".join(SENTENCES[:20])  # longer than the model can read


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny classifier with a temperature, next to a file of labelled texts."""
    folder = save_encoder(tmp_path_factory.mktemp("export") / "model", **NAMED)
    found = ebmcal.load(folder).predict(SENTENCES)
    labels = (found.logits / 2 + np.random.default_rng(0).gumbel(size=found.logits.shape)).argmax(axis=1)
    save_calibrator(folder, TemperatureScaling().fit(found.logits, labels))
    rows = [*zip(SENTENCES, [NAMES[i] for i in labels], strict=True), (LONG, "good")]
    (folder.parent / "rows.csv").write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
    return folder


@pytest.fixture(scope="module")
def exported(model):
    return export_onnx(
        model, model.parent / "onnx", energy=True, int8=True, data=model.parent / "rows.csv", label_column="label"
    )


@pytest.fixture
def written_before(exported, monkeypatch):
    """Use the graph that was exported before: writing one takes seconds."""

    def write_graph(path, *_):
        shutil.copy(exported.directory / "model.onnx", path)

    monkeypatch.setattr("ebmcal.export.onnx.write_graph", write_graph)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_the_export_agrees_with_pytorch(model, exported):
    texts = ["a joy", *SENTENCES[::7], LONG]
    expected = ebmcal.load(model).predict(texts)
    assert expected.meta["calibrator"]["name"] == "temperature"
    found = OnnxSession(exported.directory).predict(texts)
    np.testing.assert_allclose(softmax(found["logits"]), expected.probs, atol=1e-5)
    np.testing.assert_allclose(found["energy"], expected.energies, rtol=1e-5, atol=1e-6)
    record = json.loads((exported.directory / "export.json").read_text())
    assert record["n_texts"] == len(SENTENCES) + 1
    assert record["temperature"] == ebmcal.load(model).calibrator.temperature_ != 1
    assert all(difference < 1e-5 for difference in record["max_difference"].values())


def test_int8_comes_with_its_cost(exported):
    found = exported.record["int8"]
    small, full = (OnnxSession(exported.directory, name).predict(SENTENCES)["logits"] for name in (INT8, "model.onnx"))
    assert 0 < np.abs(small - full).max() < 1
    assert found["same_label"] >= 0.9
    assert found["n_labelled"] == len(SENTENCES) + 1
    assert set(found["metrics"]) == {"accuracy", "ece_top_label", "ece_classwise", "nll"}
    nll = found["metrics"]["nll"]
    assert nll["difference"] == pytest.approx(nll["int8"] - nll["float32"])
    assert nll["low"] <= nll["difference"] <= nll["high"]
    assert "model_int8.onnx" in str(exported)
    assert "nll" in str(exported)


def test_the_example_needs_neither_torch_nor_ebmcal(model, exported, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'transformers', 'ebmcal'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    command = [sys.executable, str(EXAMPLE), str(exported.directory), SENTENCES[0], SENTENCES[50]]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = ebmcal.load(model).predict([SENTENCES[0], SENTENCES[50]])
    for line, probs, energy in zip(done.stdout.splitlines(), expected.probs, expected.energies, strict=True):
        assert f"{NAMES[probs.argmax()]} {probs.max():.3f}" in line
        assert f"energy {energy:.2f}" in line


def test_nothing_is_written_if_the_export_differs(model, written_before, tmp_path, monkeypatch):
    original = OnnxSession.predict

    def predict(self, texts, on_batch):
        found = original(self, texts, on_batch)
        return found | {"logits": found["logits"] + np.eye(3)[0] * (np.arange(len(texts)) == 3)[:, None]}

    monkeypatch.setattr(OnnxSession, "predict", predict)
    with pytest.raises(EbmcalError, match=f"differs from PyTorch: probabilities by .*{SENTENCES[3][:20]}"):
        export_onnx(model, tmp_path / "out", data=SENTENCES[:5])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roberta", "distilbert", "mpnet", "albert"])
def test_scalar_energy_and_pairs(kind, tmp_path):
    EnergyClassifier(make_encoder(kind, **NAMED), "scalar").save_pretrained(tmp_path / "model")
    make_wordpiece().save_pretrained(tmp_path / "model")
    pairs = [(text, "was never dull") for text in SENTENCES[:12]]
    done = export_onnx(tmp_path / "model", tmp_path / "out", energy=True, data=pairs)
    assert set(done.record["max_difference"]) == {"probabilities", "energy"}
    assert "not calibrated" in str(done)
    found = OnnxSession(tmp_path / "out").predict(pairs)["energy"]
    np.testing.assert_allclose(found, ebmcal.load(tmp_path / "model").energy(pairs), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_mean_pooling(tmp_path):
    """The heads of the built-in encoders."""
    from ebmcal.modeling.mean_pooling import MeanPoolingConfig, MeanPoolingForSequenceClassification

    backbone = make_encoder("bert").bert
    encoder = MeanPoolingForSequenceClassification(MeanPoolingConfig(backbone.config, **NAMED), backbone)
    EnergyClassifier(encoder, "hidden").save_pretrained(tmp_path / "model")
    make_wordpiece().save_pretrained(tmp_path / "model")
    done = export_onnx(tmp_path / "model", tmp_path / "out", energy=True, data=SENTENCES)
    assert done.record["max_difference"]["probabilities"] < 1e-5


@pytest.mark.slow
def test_a_folded_temperature(tmp_path):
    folder = save_encoder(tmp_path / "model", **NAMED)
    found = ebmcal.load(folder).predict(SENTENCES)
    labels = [NAMES[i] for i in (found.predicted + [i % 3 == 0 for i in range(len(SENTENCES))]) % 3]
    ebmcal.load(folder).calibrate((SENTENCES, labels)).save(tmp_path / "folded", fold=True)
    done = export_onnx(tmp_path / "folded", tmp_path / "out", energy=True, data=SENTENCES)
    assert done.record["temperature"] == pytest.approx(ebmcal.load(tmp_path / "folded").folded_temperature)
    energy = OnnxSession(tmp_path / "out").predict(SENTENCES)["energy"]
    np.testing.assert_allclose(energy, found.energies, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("directory", "options", "words"),
    [
        ("mine", {}, "is not an export"),
        ("mine", {"overwrite": True}, "is not an export"),
        ("done", {}, "--overwrite"),
        ("model.onnx", {}, r"model\.onnx: expected a directory, not a file"),
        ("a.txt", {}, "expected a directory"),
        ("new", {"data": Path("absent.csv")}, "does not exist"),
        ("new", {"data": None}, "no test split of a run.*--data FILE"),
    ],
)
def test_mistakes_are_reported_before_a_model_is_loaded(directory, options, words, model, tmp_path, monkeypatch):
    monkeypatch.setattr("ebmcal.export.onnx.load", lambda *_, **__: pytest.fail("loaded"))
    for name, file in (("mine", "cat.png"), ("done", "export.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    (tmp_path / "a.txt").touch()
    with pytest.raises(EbmcalError, match=words):
        export_onnx(model, tmp_path / directory, **{"data": model.parent / "rows.csv"} | options)
    assert not (tmp_path / "new").exists()


def test_only_a_temperature_can_be_exported(model, tmp_path):
    labels = [NAMES[i % 3] for i in range(len(SENTENCES))]
    other = ebmcal.load(model).calibrate((SENTENCES, labels), make_calibrator("isotonic"))
    with pytest.raises(EbmcalError, match="calibrated by isotonic, but only a temperature"):
        export_onnx(other, tmp_path / "out", data=SENTENCES)


def test_the_command_verifies_on_the_test_split_of_a_run_or_on_given_texts(model, written_before, tmp_path, command):
    run, trial = RunDir(tmp_path / "run"), Trial("hidden", 1)
    shutil.copytree(model, run.model(trial))
    run.config.touch()
    write_json(run.results, {"recommended": {"trial": trial.name, "calibrator": "temperature"}})
    arguments = ("export", run.root, "--onnx", tmp_path / "out")
    assert "trials/hidden-seed1/model has no test split of a run" in command(*arguments, code=1).replace("\n", "")
    ebmcal.load(model).predict(SENTENCES, calibrated=False).write(run.predictions(trial, "test"))
    assert f"Verified on {len(SENTENCES)} texts of the test split" in command(*arguments)
    given = ("--data", model.parent / "rows.csv", "--max-rows", 10, "--overwrite")
    assert "Verified on 10 texts of rows.csv" in command(*arguments, *given)
    names = {"model.onnx", "tokenizer.json", "config.json", "export.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


def test_an_abstention_rule_is_not_part_of_the_export(model, written_before, tmp_path):
    rows = model.parent / "rows.csv"
    assert "abstention rule is not" not in str(export_onnx(model, tmp_path / "plain", data=rows))
    ruled = ebmcal.load(model).fit_abstention(rows, label_column="label", ood=0.1, ood_score="max_prob")
    assert "The abstention rule is not part of the export" in str(export_onnx(ruled, tmp_path / "ruled", data=rows))
