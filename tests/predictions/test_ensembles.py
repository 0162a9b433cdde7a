"""Several predictions as one: what is averaged and what must agree."""

import numpy as np
import pytest

from ebmcal import EbmcalError, Predictions
from ebmcal.predictions import ensemble


def member(seed, n=300, **changes):
    """Logits of one seed: a shared part and its own."""
    shared, own = np.random.default_rng(n), np.random.default_rng(seed)
    logits = 2 * shared.normal(size=(n, 3))
    labels = (logits + shared.gumbel(size=logits.shape)).argmax(axis=1)
    given = {
        "labels": labels,
        "label_names": ("a", "b", "c"),
        "logits": 2 * (logits + own.normal(size=logits.shape)),
        "energies": own.normal(size=n),
        "ids": [f"row-{i}" for i in range(n)],
        "meta": {"method": "hidden", "seed": seed},
    }
    return Predictions(**given | changes)


def test_probabilities_and_energies_are_averaged_over_matched_rows():
    one, other = member(1), member(2)
    mixed = ensemble([one, other.rows(np.random.default_rng(0).permutation(300)).reorder(("c", "a", "b"))])
    np.testing.assert_allclose(mixed.probs, (one.probs + other.probs) / 2)
    np.testing.assert_allclose(mixed.energies, (one.energies + other.energies) / 2)
    assert mixed.logits is None
    assert mixed.meta["method"] == "hidden"
    assert "seed" not in mixed.meta
    assert [meta["seed"] for meta in mixed.meta["ensemble"]] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": [f"other-{i}" for i in range(300)]}, "only in"),
        ({"labels": np.zeros(300, dtype=int)}, "another label"),
        ({"label_names": ("a", "b", "x")}, "the classes are a, b, x"),
    ],
)
def test_what_does_not_match_is_refused(changes, words):
    with pytest.raises(EbmcalError, match=words):
        ensemble([member(1), member(2, **changes)])


def test_one_model_is_no_ensemble():
    with pytest.raises(EbmcalError, match="at least two models, got 1"):
        ensemble([member(1)])


def test_energies_that_a_member_lacks_are_left_out():
    assert ensemble([member(1), member(2, energies=None)]).energies is None
