"""`ebmcal robustness` and `ebmcal.evaluate_robustness` with tiny models."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")

import ebmcal
from ebmcal import EbmcalError
from tiny_models import SENTENCES, save_encoder

NAMES = ("negative", "positive")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robustness")
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    for seed, name in enumerate(("ours", "theirs")):
        save_encoder(folder / name, n_labels=2, seed=seed, **names)
    rows = "".join(f'"{text}",{NAMES[i % 2]}\n' for i, text in enumerate(SENTENCES[:40]))
    (folder / "test.csv").write_text("text,label\n" + rows)
    return folder


def test_the_command(place, command):
    report, numbers = place / "robustness.html", place / "robustness.json"
    out = command(
        "robustness", place / "ours", "--data", place / "test.csv", "--baseline", place / "theirs", "--max-rows", 24,
        "--perturbations", "random-tokens,uppercase", "--report", report, "--json", numbers,
    )  # fmt: skip
    assert "Random tokens" in out
    assert "plain opinions" in out
    assert max(len(line) for line in out.splitlines() if str(place) not in line) <= 100
    document = json.loads(numbers.read_text(encoding="utf-8"))
    assert document["models"] == ["ours", "theirs"]
    assert document["n_rows"] == 24
    assert {test["kind"] for test in document["tests"]} == {"invariance", "directional", "minimum-functionality"}
    assert "<svg" in report.read_text(encoding="utf-8")
    again = ebmcal.evaluate_robustness(
        place / "ours", place / "test.csv", baseline=place / "theirs", max_rows=24,
        perturbations=["random-tokens", "uppercase"],
    )  # fmt: skip
    assert json.loads(again.to_json()) == document


def test_the_baseline_may_have_its_labels_in_another_order(place, tmp_path):
    from safetensors.torch import load_file, save_file

    turned = shutil.copytree(place / "theirs", tmp_path / "turned")
    config = json.loads((turned / "config.json").read_text())
    config |= {"id2label": {"0": "positive", "1": "negative"}, "label2id": {"positive": 0, "negative": 1}}
    (turned / "config.json").write_text(json.dumps(config))
    weights = load_file(turned / "model.safetensors")
    weights |= {name: weights[name].flip(0).contiguous() for name in ("classifier.weight", "classifier.bias")}
    save_file(weights, turned / "model.safetensors", {"format": "pt"})
    frames = [
        ebmcal.evaluate_robustness(
            place / "ours", place / "test.csv", baseline=other, max_rows=24, perturbations=["uppercase"]
        ).conditions.query("model != 'ours'")
        for other in (place / "theirs", turned)
    ]
    for metric in ("accuracy", "nll"):
        np.testing.assert_allclose(frames[0][metric], frames[1][metric], rtol=1e-5)


def test_suites_that_do_not_suit_the_model_are_skipped(place, tmp_path):
    save_encoder(tmp_path / "three", n_labels=3)
    rows = "".join(f"{text},LABEL_{i % 3}\n" for i, text in enumerate(["a film", "dull", "a joy"] * 4))
    (tmp_path / "test.csv").write_text("text,label\n" + rows)
    result = ebmcal.evaluate_robustness(tmp_path / "three", tmp_path / "test.csv", perturbations=[])
    assert set(result.tests.suite) == {"additions"}
    assert any("plain opinions (for negative, positive)" in skipped for skipped in result.meta["skipped"])


def test_what_is_refused(place, tmp_path):
    with pytest.raises(EbmcalError, match=r"Unknown perturbation 'typo'\. Did you mean 'typos'"):
        ebmcal.evaluate_robustness(place / "ours", place / "test.csv", perturbations=["typo"])
    with pytest.raises(EbmcalError, match="Nothing to test"):
        ebmcal.evaluate_robustness(place / "ours", place / "test.csv", perturbations=[], use_builtin_suites=False)
    save_encoder(tmp_path / "three", n_labels=3)
    with pytest.raises(EbmcalError, match="labels differ"):
        ebmcal.evaluate_robustness(place / "ours", place / "test.csv", baseline=tmp_path / "three")
    (tmp_path / "none.csv").write_text("text,label\na,\nb,\n")
    with pytest.raises(EbmcalError, match="label"):
        ebmcal.evaluate_robustness(place / "ours", tmp_path / "none.csv")
    with pytest.raises(EbmcalError, match="does not exist"):
        ebmcal.evaluate_robustness(place / "ours", tmp_path / "absent.csv")
