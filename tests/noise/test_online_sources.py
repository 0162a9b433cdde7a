"""Noise made from the training texts (splice, unrelated): what it is, and that it never fails on odd texts."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from noise_models import make_texts

from ebmcal import noise as noise_package
from ebmcal.data.splits import Texts
from ebmcal.errors import EbmcalError
from ebmcal.noise import allot, online_stream
from ebmcal.noise.sources import OnlineStream, Splice, splice_texts
from ebmcal.noise.unrelated import MAX_TEXTS, OtherTexts, RandomWords
from tiny_models import SENTENCES

ODD = [
    "x" * 5000,
    "long " * 3000,
    "a\0b",
    "\ufeffBOM",
    "one\r\ntwo\rthree",
    "\u202eright\u202c \u2028",
    "👩\u200d👧 🏳️\u200d🌈",
    "=",
]

#: Sentences that share no word, so that the origin of every word is known.
DISTINCT = [" ".join(f"w{i}.{j}" for j in range(4 + i % 9)) for i in range(80)]
SINGLE = make_texts(DISTINCT)
PAIRS = make_texts(list(zip(DISTINCT, DISTINCT[7:], strict=False)))
FILE = make_texts(["a page", "another page", "a third"])
SOURCES = {"splice": Splice(), "unrelated": RandomWords(), "file": OtherTexts(FILE)}


def write(source, texts, n=300, first=0):
    return source.write(texts, [np.random.default_rng(seed) for seed in range(first, first + n)])


@pytest.mark.parametrize("texts", [SINGLE, PAIRS], ids=["single", "pairs"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_text_depends_on_its_own_generator_only(name, texts):
    source = SOURCES[name]
    together = write(source, texts, 40)
    assert [write(source, texts, 1, seed)[0] for seed in reversed(range(40))] == together[::-1]
    assert len(set(together)) > (1 if name == "file" else 30)
    assert all((pair is not None) == texts.is_pair for _, pair in together)


@pytest.mark.parametrize(
    ("noise", "single", "pairs"),
    [
        ("splice", "564fbca4017cb396", "6f95dc234d302ee8"),
        ("unrelated", "dd92080bb707821a", "6affcb5b71bcec72"),
        ("splice 0.75, unrelated 0.25", "de2df311655d44b6", "93c755b2894ea5ad"),
        ("file", "de775638d5649cd9", "7d3c81c23a45900a"),
    ],
)
def test_the_texts_of_a_seed_never_change(noise, single, pairs):
    """Published results depend on the noise of each (seed, number)."""
    data = {single: SENTENCES, pairs: list(zip(SENTENCES, SENTENCES[7:], strict=False))}
    for expected, rows in data.items():
        texts = make_texts(rows)
        is_file = noise == "file"
        stream = OnlineStream(SOURCES["file"], texts, 5) if is_file else online_stream(noise, texts.dataset, 5)
        shares = [1.0] if is_file else stream.shares
        drawn = [[allot(n, shares)[0], *text] for n, text in enumerate(stream.draw(range(500)))]
        assert hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16] == expected


def is_splice(text, first, other):
    words, ends, found = first.split(), other.split(), text.split()
    return any(found == words[:cut] + ends[-(len(words) - cut) :] for cut in range(1, len(words)))


def test_a_splice_is_the_beginning_of_one_text_and_the_end_of_another():
    by_word = {word: text for text in DISTINCT for word in text.split()}
    for text, _ in write(Splice(), SINGLE):
        first, other = by_word[text.split()[0]], by_word[text.split()[-1]]
        assert first != other
        assert is_splice(text, first, other)


def test_a_pair_is_spliced_in_three_ways():
    """The second sentence of another row, or either sentence spliced: a third each."""
    rows = PAIRS[range(len(PAIRS))]
    firsts, seconds = ({row[i] for row in rows} for i in (0, 1))
    ways = Counter()
    for a, b in write(Splice(), PAIRS, 600):
        kept = (a in firsts, b in seconds)
        assert any(kept)
        assert (a, b) not in rows
        ways[kept] += 1
    assert len(ways) == 3
    assert min(ways.values()) > 140


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("好电影", "坏天气", {"好天气", "好电气"}),  # without spaces: cut between characters
        ("Great!", "what a dull film", {"Great! film"}),  # one word next to a text with spaces is not cut
        ("what a film", "dull", {"what dull", "what a dull"}),
        ("x", "y", {"xy"}),
        ("one two three", "", {"one", "one two"}),
        ("", "what a film", {"film"}),
        (" ", "what a film", {"film"}),
        ("", "", {""}),
    ],
)
def test_splicing_short_and_unspaced_texts(text, other, expected):
    assert {splice_texts(text, other, np.random.default_rng(seed)) for seed in range(40)} == expected


def test_unrelated_texts_are_shuffled_or_drawn_words_of_the_length_of_data():
    bags = {" ".join(sorted(text.split())) for text in DISTINCT}
    vocabulary, lengths = {w for t in DISTINCT for w in t.split()}, {len(t.split()) for t in DISTINCT}
    texts = [text for text, _ in write(RandomWords(), SINGLE)]
    assert 0.4 < np.mean([" ".join(sorted(text.split())) in bags for text in texts]) < 0.6
    assert {word for text in texts for word in text.split()} <= vocabulary
    assert {len(text.split()) for text in texts} <= lengths
    assert np.mean([text in DISTINCT for text in texts]) < 0.02


def test_words_are_drawn_from_a_bounded_number_of_texts():
    class Counting(Texts):
        n_read = 0

        def __getitem__(self, indices):
            self.n_read += len(indices)
            return super().__getitem__(indices)

    texts = Counting(make_texts(["long " * 3000]).dataset)
    ((text, _),) = RandomWords().write(texts, [np.random.default_rng(0)])
    assert len(text.split()) == 3000
    assert texts.n_read == 1 + MAX_TEXTS  # one for the length, the others for the words


def test_texts_of_a_file_for_single_texts_and_pairs():
    pages = {"a page", "another page", "a third"}
    assert set(write(OtherTexts(FILE), SINGLE)) == {(page, None) for page in pages}
    assert {pair for _, pair in write(OtherTexts(FILE), PAIRS)} == pages
    of_pairs = OtherTexts(make_texts([("first", "second"), ("third", "fourth")]))
    assert set(write(of_pairs, PAIRS)) == {("first", "second"), ("third", "fourth")}
    assert set(write(of_pairs, SINGLE)) == {("first", None), ("third", None)}


@pytest.mark.parametrize("name", ["splice", "unrelated"])
@settings(max_examples=60)
@given(
    rows=st.lists(st.text(max_size=40) | st.sampled_from(["", " ", "\t\n"]), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
@example(rows=ODD, seed=0)
@example(rows=ODD[::-1], seed=1)
@example(rows=["x"], seed=0)
@example(rows=["好电影", "a fine film"], seed=2)
@example(rows=["", " "], seed=0)
def test_odd_texts_give_texts_which_are_empty_only_if_others_are(name, rows, seed):
    rows = [row.encode("utf-8", "replace").decode() for row in rows]
    (single,) = write(SOURCES[name], make_texts(rows), 1, seed)
    (pair,) = write(SOURCES[name], make_texts([(row, rows[0]) for row in rows]), 1, seed)
    assert single[1] is None
    written = [single[0], *pair]
    assert all(isinstance(text, str) for text in written)
    if all(row.strip() for row in rows):
        assert all(text.strip() for text in written)


def test_texts_are_in_the_column_text():
    rows = Dataset.from_dict({"text": ["a b", "c d"], "label": [0, 1]})
    assert Texts(rows.select([1, 0]).select([1]))[[0]] == [("a b", None)]
    with pytest.raises(EbmcalError, match="made from a column `text`"):
        Texts(rows.rename_column("text", "sentence"))


@pytest.mark.parametrize("noise", ["infill:gpt2", "splice, unrelated:pages.csv", "mlm:x"])
def test_streams_from_texts_alone_reject_other_sources(noise):
    with pytest.raises(EbmcalError, match="only splice and unrelated are made from the texts alone"):
        online_stream(noise, SINGLE.dataset, 0)


def test_a_source_added_to_the_table_is_accepted(monkeypatch):
    monkeypatch.setitem(noise_package.TEXT_SOURCES, "shuffled", "unrelated:RandomWords")
    monkeypatch.setattr(noise_package, "SOURCES", (*noise_package.SOURCES, "shuffled"))
    drawn, expected = (online_stream(name, SINGLE.dataset, 0).draw(range(5)) for name in ("shuffled", "unrelated"))
    assert drawn == expected
    with pytest.raises(EbmcalError, match="shuffled takes no argument"):
        online_stream("shuffled:x", SINGLE.dataset, 0)
