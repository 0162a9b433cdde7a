"""`Ensemble`: averaged models and passes with dropout."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from prediction_helpers import NAMES, TEXTS, read, save_model

import ebmcal
from ebmcal import EbmcalError, Ensemble, predict_file
from tiny_models import save_encoder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A model with the same classes in another order."""
    folder = save_model(tmp_path_factory.mktemp("other") / "m", seed=1)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "good", "1": "bad", "2": "fair"}
    config["label2id"] = {name: int(i) for i, name in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    return ebmcal.load(folder)


def test_members_are_averaged(table, model, other):
    both = Ensemble([model, other])
    members = [member.predict(TEXTS).reorder(NAMES) for member in (model, other)]
    expected = np.mean([p.probs for p in members], axis=0)
    averaged = both.predict(TEXTS)
    np.testing.assert_allclose(averaged.probs, expected)
    np.testing.assert_allclose(averaged.energies, np.mean([p.energies for p in members], axis=0), rtol=1e-6)
    np.testing.assert_allclose(both.predict(iter(TEXTS)).probs, expected)
    predict_file(both, table / "new.csv", table / "out.jsonl")
    rows = read(table / "out.jsonl")
    np.testing.assert_allclose([row["prob_good"] for row in rows], expected[:, 2], atol=1e-6)
    entropy = [-(p * np.log(p)).sum(axis=1) for p in (expected, members[0].probs, members[1].probs)]
    information = entropy[0] - (entropy[1] + entropy[2]) / 2
    np.testing.assert_allclose([row["disagreement"] for row in rows], information, atol=1e-6)


def test_dropout_passes_differ_and_are_reproducible(model):
    passes = Ensemble([model], mc_dropout=4)
    first = passes.predict(TEXTS[:8])
    np.testing.assert_array_equal(passes.predict(TEXTS[:8]).probs, first.probs)
    assert not np.allclose(first.probs, model.predict(TEXTS[:8]).probs, atol=1e-6)
    members = passes.predict_members(TEXTS[:8])
    assert len({p.probs.tobytes() for p in members}) == 4
    assert not model.predictor.classifier.training


def test_what_is_refused(model, tmp_path):
    with pytest.raises(EbmcalError, match="at least one model"):
        Ensemble([])
    with pytest.raises(EbmcalError, match="given twice"):
        Ensemble([model, model])
    with pytest.raises(EbmcalError, match="expected 2 passes or more, got 1"):
        Ensemble([model], mc_dropout=1)
    with pytest.raises(EbmcalError, match="labels differ: bad, fair, good"):
        Ensemble([model, ebmcal.load(save_encoder(tmp_path / "two", n_labels=2))])
