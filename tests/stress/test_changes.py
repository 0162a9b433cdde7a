"""Changes of texts: as strong as they say, the same for the same seed, nothing at strength 0."""

import numpy as np
import pytest

from ebmcal.stress.changes import CHANGES, TokenizerTokens

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


def changed(name, strength, seed=0, text=TEXT):
    return CHANGES[name].apply(text, strength, np.random.default_rng(seed), Words())


@pytest.mark.parametrize("name", CHANGES)
def test_every_change(name):
    assert changed(name, 0.0) == TEXT
    for strength in CHANGES[name].strengths:
        assert changed(name, strength) != TEXT
        assert changed(name, strength) == changed(name, strength)
        for odd in ("", " ", "x", "日本語", "🙂 🙂"):
            assert isinstance(changed(name, strength, text=odd), str)


@pytest.mark.parametrize("name", ["random-tokens", "typos", "case", "word-order"])
def test_as_many_words_as_the_strength_says(name):
    words = TEXT.split(" ")
    found = [sum(a != b for a, b in zip(words, changed(name, 0.25, s).split(" "), strict=True)) for s in range(20)]
    n_eligible = sum(len(w) > 2 for w in words) if name == "typos" else len(words)
    assert max(found) == round(0.25 * n_eligible)
    if name != "word-order":  # words that trade places may be the same, or find their own again
        assert set(found) == {round(0.25 * n_eligible)}


def test_order_and_cuts_keep_the_words():
    assert sorted(changed("word-order", 1.0).split()) == sorted(TEXT.split())
    assert TEXT.startswith(changed("truncation", 0.5))
    assert len(changed("truncation", 0.75).split()) == round(len(TEXT.split()) * 0.25)


def test_tokens_of_a_tokenizer(wordpiece):
    tokens = TokenizerTokens(wordpiece)
    assert [TEXT[a:b] for a, b in tokens.spans(TEXT)][:3] == ["the", "old", "phone"]
    drawn = {tokens.draw(np.random.default_rng(i)) for i in range(100)}
    assert len(drawn) > 30
    assert not [token for token in drawn if token.startswith(("#", "["))]
