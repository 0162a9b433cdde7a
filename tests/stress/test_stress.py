"""`ebmcal stress` from end to end with tiny models."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")

import ebmcal
from ebmcal.cli import main
from ebmcal.errors import EbmcalError
from small_runs import write_csv
from tiny_models import SENTENCES, save_encoder

NAMES = ("negative", "positive")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stress")
    names = {"id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}}
    for seed, name in enumerate(("ours", "theirs")):
        save_encoder(folder / name, n_labels=2, seed=seed, **names)
    write_csv(folder / "test.csv", [(text, NAMES[i % 2]) for i, text in enumerate(SENTENCES[:40])])
    return folder


def test_the_command(place, capsys):
    files = {"--report": place / "stress.html", "--json": place / "stress.json"}
    options = [str(word) for pair in files.items() for word in pair]
    with pytest.raises(SystemExit, match="0"):
        main(["stress", str(place / "ours"), "--on", str(place / "test.csv"), "--beside", str(place / "theirs"),
              "--max-rows", "24", "--changes", "random-tokens,case", *options])  # fmt: skip
    out = capsys.readouterr().out
    assert "Random tokens" in out
    assert "plain judgements" in out
    document = json.loads(files["--json"].read_text(encoding="utf-8"))
    assert document["models"] == ["ours", "theirs"]
    assert document["n_rows"] == 24
    assert {t["kind"] for t in document["tests"]} == {"invariance", "directional", "minimum-functionality"}
    assert "<svg" in files["--report"].read_text(encoding="utf-8")
    again = ebmcal.stress_test(place / "ours", place / "test.csv", beside=place / "theirs", max_rows=24,
                               changes=["random-tokens", "case"])  # fmt: skip
    assert json.loads(again.to_json()) == document


def test_the_other_model_may_have_its_labels_in_another_order(place, tmp_path):
    from safetensors.torch import load_file, save_file

    turned = shutil.copytree(place / "theirs", tmp_path / "turned")
    config = json.loads((turned / "config.json").read_text())
    config |= {"id2label": {"0": "positive", "1": "negative"}, "label2id": {"positive": 0, "negative": 1}}
    (turned / "config.json").write_text(json.dumps(config))
    weights = load_file(turned / "model.safetensors")
    weights |= {name: weights[name].flip(0).contiguous() for name in ("classifier.weight", "classifier.bias")}
    save_file(weights, turned / "model.safetensors", {"format": "pt"})
    both = [
        ebmcal.stress_test(place / "ours", place / "test.csv", beside=other, max_rows=24, changes=["case"]).document
        for other in (place / "theirs", turned)
    ]
    first, second = ([row["metrics"] for row in found["conditions"] if row["model"] != "ours"] for found in both)
    assert [row["accuracy"] for row in first] == [row["accuracy"] for row in second]
    np.testing.assert_allclose(
        [row["nll"]["value"] for row in first], [row["nll"]["value"] for row in second], rtol=1e-5
    )


def test_what_is_refused(place, tmp_path):
    with pytest.raises(EbmcalError, match="Unknown change 'typo'"):
        ebmcal.stress_test(place / "ours", place / "test.csv", changes=["typo"])
    with pytest.raises(EbmcalError, match="nothing to test"):
        ebmcal.stress_test(place / "ours", place / "test.csv", changes=[], shipped=False)
    save_encoder(tmp_path / "three", n_labels=3)
    with pytest.raises(EbmcalError, match="other labels"):
        ebmcal.stress_test(place / "ours", place / "test.csv", beside=tmp_path / "three")
    write_csv(tmp_path / "none.csv", [("a", ""), ("b", "")])
    with pytest.raises(EbmcalError, match="label"):
        ebmcal.stress_test(place / "ours", tmp_path / "none.csv")
