"""Perturbations: as strong as requested, the same for the same seed, no change at strength 0."""

import numpy as np
import pytest

from ebmcal.robustness import PERTURBATIONS
from ebmcal.robustness.perturbations import TokenSource

TEXT = "the old phone was never worth the time and feels dull from start to end in three places"


class Words:
    """Tokens that are words."""

    def spans(self, text):
        places, start = [], 0
        for word in text.split(" "):
            places.append((start, start + len(word)))
            start += len(word) + 1
        return places

    def draw(self, rng):
        return f"new{rng.integers(9)}"


def perturb(name, strength, seed=0, text=TEXT):
    return PERTURBATIONS[name].apply(text, strength, np.random.default_rng(seed), Words())


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_every_perturbation(name):
    assert perturb(name, 0.0) == TEXT
    for strength in PERTURBATIONS[name].strengths:
        assert perturb(name, strength) != TEXT
        assert perturb(name, strength) == perturb(name, strength)
        for odd in ("", " ", "x", "日本語", "🙂 🙂"):
            assert isinstance(perturb(name, strength, text=odd), str)


@pytest.mark.parametrize("name", ["random-tokens", "typos", "uppercase", "word-order"])
def test_the_strength_is_the_share_of_changed_words(name):
    words = TEXT.split(" ")
    found = [sum(a != b for a, b in zip(words, perturb(name, 0.25, s).split(" "), strict=True)) for s in range(20)]
    n_eligible = sum(len(w) > 2 for w in words) if name == "typos" else len(words)
    assert max(found) == round(0.25 * n_eligible)
    if name != "word-order":  # equal words may trade places
        assert set(found) == {round(0.25 * n_eligible)}


def test_word_order_and_truncation_add_no_words():
    assert sorted(perturb("word-order", 1.0).split()) == sorted(TEXT.split())
    assert TEXT.startswith(perturb("truncation", 0.5))
    assert len(perturb("truncation", 0.75).split()) == round(len(TEXT.split()) * 0.25)


def test_tokens_of_a_tokenizer(wordpiece):
    tokens = TokenSource(wordpiece)
    assert [TEXT[a:b] for a, b in tokens.spans(TEXT)][:3] == ["the", "old", "phone"]
    drawn = {tokens.draw(np.random.default_rng(i)) for i in range(100)}
    assert len(drawn) > 30
    assert not [token for token in drawn if token.startswith(("#", "["))]
