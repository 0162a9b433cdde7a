"""How hard noise is to tell from data: words and copies counted by hand, and a probe of features."""

import numpy as np
import pytest

from ebmcal.data import load_texts
from ebmcal.noise.hardness import describe, kept_share, probe
from small_runs import write_csv


@pytest.fixture
def splits(tmp_path):
    """Three training texts, two others."""
    found = []
    for name, texts in (("train", ["A fine film", "a dull film", "so so"]), ("test", ["a fine plot", "dull"])):
        path = write_csv(tmp_path / f"{name}.csv", [(text,) for text in texts], ("text",))
        found.append(load_texts(path, tmp_path / "cache"))
    return found


def test_noise_beside_data_by_hand(splits):
    """Words of the training: a, fine, film, dull, so. Of the noise, `zebra` and `plot` are not among them."""
    noise = [("a dull film", None), ("Fine ZEBRA film", None), ("a plot", None), ("so so", None)]
    assert describe(noise, *splits) == {
        "identical": 0.5,
        "words": 2.5,
        "unknown_words": 0.2,
        "words_of_data": 2.0,
        "unknown_words_of_data": 0.25,
    }


def test_noise_of_pairs_and_of_nothing(splits):
    facts = describe([("a film", "so dull"), ("", "")], *splits)
    assert (facts["words"], facts["unknown_words"], facts["identical"]) == (2.0, 0.0, 0.0)
    assert describe([("", None)], *splits)["unknown_words"] == 0.0


def test_words_that_were_to_be_kept():
    """In their order, whole words only, of both sentences of a pair."""

    def share(masked, text, pair=None):
        return kept_share([{"masked": masked, "text": text, "text_pair": pair}])

    assert share("a b c d <M>", "a b c x y") == 1  # d stands beside a gap
    assert share("a b c d <M>", "c b a x y") == pytest.approx(1 / 3)
    assert share("a b <SEP> c d <M>xton e f", "a b", "c so f") == pytest.approx(4 / 5)
    assert share("a b <SEP> c d <M>xton e f", "a b", "d so on") == pytest.approx(2 / 5)
    assert share("<M>", "anything") is None
    assert share("<M> <SEP> c d e", "new", "c d e") == 1
    rows = [{"masked": "<M> x a b c", "text": text, "text_pair": None} for text in ("a b c", "x y z z")]
    assert kept_share(rows) == 0.5
    assert kept_share([]) is None
    assert kept_share([{"masked": "a b c", "text": "x", "text_pair": None}]) is None  # nothing was read


def test_the_probe_tells_apart_what_differs_and_nothing_else():
    rng = np.random.default_rng(0)
    data, like_data = rng.normal(size=(2, 300, 8))
    assert probe(data, like_data) == pytest.approx(0.5, abs=0.08)
    direction = rng.normal(size=8)
    values = [probe(data, like_data + shift * direction) for shift in (0.2, 0.6, 3.0)]
    assert values == sorted(values)
    assert values[0] > 0.55
    assert values[-1] > 0.99


def test_the_probe_is_judged_on_texts_it_was_not_fitted_on():
    """As many features as texts: fitted and judged on the same ones, noise that is like data would be told apart."""
    data, noise = np.random.default_rng(1).normal(size=(2, 100, 200))
    assert probe(data, noise, ridge=1e-6) == pytest.approx(0.5, abs=0.12)


def test_the_probe_does_not_know_noise_by_the_texts_that_it_is_made_of():
    """Copies of 40 texts that are like the data: fitted on one copy and judged on another, they would be known."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng([3, seed])
        data, sources, chosen = rng.normal(size=(200, 64)), rng.normal(size=(40, 64)), rng.integers(40, size=200)
        found.append([probe(data, sources[chosen]), probe(data, sources[chosen], groups=chosen)])
    alone, by_group = np.mean(found, axis=0)
    assert alone > 0.75
    assert by_group == pytest.approx(0.5, abs=0.05)


def test_the_probe_does_not_depend_on_scale_and_takes_a_constant_feature():
    rng = np.random.default_rng(2)
    data, noise = rng.normal(size=(80, 4)), rng.normal(size=(60, 4)) + 0.5
    expected = probe(data, noise)
    assert probe(data * 1000, noise * 1000) == pytest.approx(expected, abs=1e-3)
    constant = [np.concatenate([part, np.ones((len(part), 1))], axis=1) for part in (data, noise)]
    assert probe(*constant) == pytest.approx(expected, abs=1e-6)
