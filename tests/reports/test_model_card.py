"""Model cards: their content, that an edited one is kept, and models without a run."""

import shutil

import numpy as np
import pytest
import yaml

from ebmcal import Predictions
from ebmcal.calibration import TemperatureScaling, save_calibrator
from ebmcal.errors import EbmcalError
from ebmcal.reports import write_model_card
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json
from synthetic_run import LABELS, make_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A model directory of a finished run, without weights."""
    run = RunDir(make_run(tmp_path_factory.mktemp("card") / "run", n=60))
    run.config.write_text(
        "task: rte\nencoder: org/small\nsteps: 20\ntrain: /secret/rows.csv\n"
        "output: /secret/place\nood: {news: /secret/n.csv}\n"
    )
    folder = run.model(Trial("hidden", 2))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"id2label": dict(enumerate(LABELS))})
    facts = {"energy": "hidden", "method": "hidden", "seed": 2, "task": "rte", "max_length": 64, "is_pair": True}
    write_json(folder / "ebmcal.json", facts)
    return run.root


@pytest.fixture
def model(finished, tmp_path):
    return RunDir(shutil.copytree(finished, tmp_path / "run")).model(Trial("hidden", 2))


def test_content_of_a_card(model):
    text = write_model_card(model).read_text(encoding="utf-8")
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["pipeline_tag"] == "text-classification"
    assert header["base_model"] == "org/small"
    (result,) = header["model-index"][0]["results"]
    assert {m["type"] for m in result["metrics"]} >= {"accuracy", "ece_top_label", "nll"}
    assert "| hidden + temperature (dev)" in text
    assert "| baseline" not in text
    assert "60 rows of the split test" in text
    assert "train: rows.csv" in text
    assert "/secret" not in text
    assert "`<script>alert(1)</script>`" in text
    assert "a pair of texts" in text
    assert "64 tokens" in text
    assert "seed 2 only" in text
    assert "detection was measured: reviews" in text
    assert "![Reliability" in text
    assert (model / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_was_calibrated_again_does_not_show_the_old_numbers_as_its_own(model):
    labels, rng = np.arange(120) % 2, np.random.default_rng(0)
    logits = 2 * np.eye(len(LABELS))[labels] + rng.normal(size=(120, len(LABELS)))
    rows = Predictions(labels, LABELS, logits=logits)
    save_calibrator(model, TemperatureScaling().fit_predictions(rows))
    text = write_model_card(model).read_text(encoding="utf-8")
    assert "model-index" not in text
    assert "reliability.png" not in text
    assert "The model was calibrated again after these results were computed." in text


def test_same_card_twice_and_an_edited_one_is_kept(model):
    first = write_model_card(model).read_text(encoding="utf-8")
    assert write_model_card(model).read_text(encoding="utf-8") == first
    for edited in (first.replace("# rte", "# My model"), "mine"):
        (model / "README.md").write_text(edited, encoding="utf-8")
        assert write_model_card(model) is None
        assert (model / "README.md").read_text(encoding="utf-8") == edited


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"folded_temperature": 1.25}, "A temperature of 1.25 is folded into the weights"),
        ({"energy": "sngp"}, "Gaussian process"),
        ({}, "not calibrated after training"),
    ],
)
def test_how_to_use_depends_on_the_calibrator(tmp_path, facts, sentence):
    write_json(tmp_path / "config.json", {"id2label": {"0": "no", "1": "yes"}})
    write_json(tmp_path / "ebmcal.json", {"method": "hidden", **facts})
    assert sentence in write_model_card(tmp_path).read_text(encoding="utf-8")


def test_a_plain_checkpoint_has_a_card_too(tmp_path):
    write_json(tmp_path / "config.json", {"id2label": {"0": "no", "1": "yes"}})
    text = write_model_card(tmp_path).read_text(encoding="utf-8")
    assert "not evaluated" in text
    assert "`no`, `yes`" in text
    assert "also has an energy" not in text
    with pytest.raises(EbmcalError, match=r"no config\.json"):
        write_model_card(tmp_path / "nowhere")
