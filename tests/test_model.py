"""A model folder on a file of texts: the calibrator that is kept with it, and a temperature in its weights."""

import numpy as np
import pytest

pytest.importorskip("torch")

from ebmcal.calibrators import TemperatureScaling, attach
from ebmcal.calibrators.storage import attach_folded
from ebmcal.errors import EbmcalError
from ebmcal.model import energies_of, load, predict_file

TEXTS = ["a fine film", "a dull film", "fine"]


@pytest.fixture
def model(encoder_folder, tmp_path):
    """A copy of the tiny encoder, saved as a finetuned classifier."""
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    load(encoder_folder).save_pretrained(folder, {"max_length": 32})
    AutoTokenizer.from_pretrained(encoder_folder).save_pretrained(folder)
    return folder


@pytest.fixture
def file(tmp_path):
    (tmp_path / "new.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    return tmp_path / "new.csv"


def temperature(n_classes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, n_classes))
    return TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


def test_the_calibrator_in_the_folder_is_applied_and_said(model, file):
    raw = predict_file(model, file)
    calibrator = temperature(raw.n_classes)
    attach(model, calibrator)
    p = predict_file(model, file)
    assert p.meta["calibrator"]["name"] == "temperature"
    np.testing.assert_allclose(p.probabilities(), calibrator.predict_proba(raw.logits))
    assert "calibrator" not in predict_file(model, file, calibrated=False).meta


def test_folding_changes_logits_and_not_energies_and_another_calibrator_may_follow(model, file):
    before = predict_file(model, file)
    calibrator = temperature(before.n_classes)
    attach_folded(model, calibrator)
    after = predict_file(model, file)
    np.testing.assert_allclose(after.logits, before.logits / calibrator.temperature_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after.energies, before.energies, rtol=1e-4)
    np.testing.assert_allclose(predict_file(model, file, calibrated=False).energies, before.energies, rtol=1e-4)
    np.testing.assert_allclose(energies_of(model, [(t, None) for t in TEXTS]), before.energies, rtol=1e-4)
    attach(model, calibrator)
    assert predict_file(model, file).meta["calibrator"]["name"] == "temperature"


def test_a_folder_that_is_none(tmp_path, file):
    with pytest.raises(EbmcalError, match="not a model folder"):
        predict_file(tmp_path / "nothing", file)
