"""Difficulty of noise: words and copies counted by hand, and the linear probe."""

import numpy as np
import pytest

from ebmcal.noise.difficulty import describe_noise, kept_share, probe_auroc

TRAIN = [("A fine film", None), ("a dull film", None), ("so so", None)]
TEST = [("a fine plot", None), ("dull", None)]


def test_noise_next_to_data_by_hand():
    """Words of the training texts: a, fine, film, dull, so. Of the noise, `zebra` and `plot` are not among them."""
    noise = [("a dull film", None), ("Fine ZEBRA film", None), ("a plot", None), ("so so", None)]
    assert describe_noise(noise, TRAIN, TEST) == {
        "copies": 0.5,
        "words": 2.5,
        "unknown_words": 0.2,
        "words_of_data": 2.0,
        "unknown_words_of_data": 0.25,
    }


def test_pairs_and_empty_texts():
    facts = describe_noise([("a film", "so dull"), ("", "")], TRAIN, TEST)
    assert (facts["words"], facts["unknown_words"], facts["copies"]) == (2.0, 0.0, 0.0)
    assert describe_noise([("", None)], TRAIN, TEST)["unknown_words"] == 0.0


def test_kept_words_in_order_whole_words_only_of_both_sentences():
    def share(masked, text, pair=None):
        return kept_share([{"masked": masked, "text": text, "text_pair": pair}])

    assert share("a b c d <M>", "a b c x y") == 1  # d is next to a gap
    assert share("a b c d <M>", "c b a x y") == pytest.approx(1 / 3)
    assert share("a b <SEP> c d <M>xton e f", "a b", "c so f") == pytest.approx(4 / 5)
    assert share("a b <SEP> c d <M>xton e f", "a b", "d so on") == pytest.approx(2 / 5)
    assert share("<M>", "anything") is None
    assert share("<M> <SEP> c d e", "new", "c d e") == 1
    rows = [{"masked": "<M> x a b c", "text": text, "text_pair": None} for text in ("a b c", "x y z z")]
    assert kept_share(rows) == 0.5
    assert kept_share([]) is None
    assert kept_share([{"masked": "a b c", "text": "x", "text_pair": None}]) is None  # nothing was masked


def test_the_probe_grows_with_the_difference():
    rng = np.random.default_rng(0)
    data, like_data = rng.normal(size=(2, 300, 8))
    assert probe_auroc(data, like_data) == pytest.approx(0.5, abs=0.08)
    direction = rng.normal(size=8)
    values = [probe_auroc(data, like_data + shift * direction) for shift in (0.2, 0.6, 3.0)]
    assert values == sorted(values)
    assert values[0] > 0.55
    assert values[-1] > 0.99


def test_the_probe_is_evaluated_on_other_texts_than_it_was_fitted_on():
    """With more features than texts, a probe evaluated on its own texts would separate anything."""
    data, noise = np.random.default_rng(1).normal(size=(2, 100, 400))
    assert probe_auroc(data, noise) == pytest.approx(0.5, abs=0.12)


def test_texts_of_a_group_stay_in_one_fold():
    """Copies of 40 texts: fitted on one copy and evaluated on another, the probe would recognise them."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng([3, seed])
        data, sources, chosen = rng.normal(size=(200, 64)), rng.normal(size=(40, 64)), rng.integers(40, size=200)
        found.append([probe_auroc(data, sources[chosen]), probe_auroc(data, sources[chosen], groups=chosen)])
    ungrouped, grouped = np.mean(found, axis=0)
    assert ungrouped > 0.75
    assert grouped == pytest.approx(0.5, abs=0.05)


def test_the_probe_ignores_scale_and_constant_features_and_needs_two_folds():
    rng = np.random.default_rng(2)
    data, noise = rng.normal(size=(80, 4)), rng.normal(size=(60, 4)) + 0.5
    expected = probe_auroc(data, noise)
    assert probe_auroc(data * 1000, noise * 1000) == pytest.approx(expected, abs=1e-6)
    constant = [np.concatenate([part, np.ones((len(part), 1))], axis=1) for part in (data, noise)]
    assert probe_auroc(*constant) == pytest.approx(expected, abs=1e-6)
    assert probe_auroc(data, noise, groups=np.zeros(60)) is None
    assert probe_auroc(data[:1], noise) is None
