"""Noise made from the training texts: what each source writes, and that it never fails on odd texts."""

from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebmcal.noise.sources import (
    MOST_TEXTS,
    WAYS,
    Far,
    Others,
    Splice,
    draw_words,
    join,
    join_halves,
    replace_middle,
    shuffle,
    take_turns,
    to_words,
)
from tiny_models import SENTENCES

ODD = [
    "x" * 5000,
    "long " * 3000,
    "a\0b",
    "\ufeffBOM",
    "one\r\ntwo\rthree",
    "\u202eright\u202c \u2028",
    "👩‍👧 🏳️‍🌈",
    "=",
]


class Pool:
    """What a source asks of `Texts`, over a list."""

    def __init__(self, rows, labels=None):
        self.given = [row if isinstance(row, tuple) else (row, None) for row in rows]
        self.is_pair = self.given[0][1] is not None
        self.labels = np.zeros(len(rows), dtype=int) if labels is None else np.asarray(labels)
        self.read = 0

    def __len__(self):
        return len(self.given)

    def rows(self, indices):
        self.read += len(indices)
        return [self.given[int(i)] for i in indices]


#: Sentences that share no word: whose word a noise text has is plain to see.
APART = [" ".join(f"w{i}.{j}" for j in range(4 + i % 9)) for i in range(80)]
SINGLE = Pool(APART)
PAIRS = Pool(list(zip(APART, APART[7:], strict=False)))
SOURCES = {
    "splice": Splice(), "same-label": Splice("same-label"), "other-label": Splice("other-label"),
    "middle": Splice("middle"), "halves": Splice("halves"), "several": Splice("several"), "far": Far(),
    "others": Others(Pool(["a page of a book", "another page"])),
}  # fmt: skip


def write(source, pool, seed):
    return source.write(pool, np.random.default_rng(seed))


def many(source, pool, n=300):
    return [write(source, pool, seed) for seed in range(n)]


@pytest.mark.parametrize("pool", [SINGLE, PAIRS], ids=["single", "pairs"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_text_depends_on_the_random_numbers_alone(name, pool):
    """Written again, in another order, it is the same; other numbers give other texts; pairs give pairs."""
    source = SOURCES[name]
    texts = many(source, pool, 40)
    assert [write(source, pool, seed) for seed in reversed(range(40))] == texts[::-1]
    assert len({text.row for text in texts}) > (1 if name == "others" else 30)
    assert all((text.row[1] is not None) == pool.is_pair for text in texts)


def is_join(text, first, other):
    """Whether a text is the beginning of one, then the end of another, as long as the first or less."""
    words, ends = first.split(), other.split()
    found = text.split()
    cuts = range(1, len(words))
    return any(
        found == words[:cut] + ends[-(len(words) - cut) :] and len(found) <= len(words) for cut in cuts
    )  # fmt: skip


def test_a_splice_is_a_beginning_and_an_end_and_knows_both():
    for text in many(Splice(), SINGLE):
        first, other, share = text.parts
        assert first != other
        sentences = [SINGLE.given[i][0] for i in (first, other)]
        assert is_join(text.row[0], *sentences)
        n_own = share * len(text.row[0].split())
        assert n_own == pytest.approx(round(n_own))
        assert text.row[0].split()[: round(n_own)] == sentences[0].split()[: round(n_own)]


def test_a_splice_is_about_as_long_as_data_and_is_none():
    texts = [text.row[0] for text in many(Splice(), SINGLE, 1000)]
    lengths, data = (np.mean([len(t.split()) for t in ts]) for ts in (texts, [t for t, _ in SINGLE.given]))
    assert 0.85 * data < lengths <= 1.02 * data
    known = {text for text, _ in SINGLE.given}
    assert not known & set(texts)


def test_every_cut_is_equally_likely():
    texts = Counter(join("a b c d", "w x y z", np.random.default_rng(seed))[0] for seed in range(600))
    assert set(texts) == {"a x y z", "a b y z", "a b c z"}
    assert min(texts.values()) > 150


def test_a_pair_is_spliced_in_three_ways():
    """The second sentence of another row, the first spliced, or the second: each a third of the time."""
    firsts, seconds = ({row[i] for row in PAIRS.given} for i in (0, 1))
    ways = Counter()
    for text in many(Splice(), PAIRS, 600):
        a, b = text.row
        assert text.parts is None  # the label of a pair is not that of its sentences
        kept = (a in firsts, b in seconds)
        assert any(kept)
        assert (a, b) not in PAIRS.given
        ways[kept] += 1
    assert len(ways) == 3
    assert min(ways.values()) > 140


def test_labels_choose_the_second_text():
    pool = Pool(SENTENCES[:60], labels=np.arange(60) % 3)
    for form, same in (("same-label", True), ("other-label", False)):
        parts = [text.parts for text in many(Splice(form), pool)]
        assert all((pool.labels[first] == pool.labels[other]) == same for first, other, _ in parts)
    lonely = Pool(SENTENCES[:5], labels=np.arange(5))
    assert write(Splice("same-label"), lonely, 0).row[0]  # there is none: it does not look for ever


def test_words_of_another_text_in_the_middle():
    for seed in range(200):
        text, share = replace_middle("a b c d e", "v w x y z", np.random.default_rng(seed))
        words = text.split()
        own = [word in "abcde" for word in words]
        assert len(words) == 5
        assert sum(own) / 5 == pytest.approx(share)
        assert 1 <= sum(own) <= 4
        assert "".join(words).strip("abcde") in "vwxyz"  # one run of the other, in its order
        assert all(word == "abcde"[i] for i, word in enumerate(words) if own[i])


def test_halves_are_half_of_each():
    assert join_halves("a b c d", "v w x y z", np.random.default_rng(0)) == ("a b y z", 0.5)
    assert join_halves("a b c", "v", np.random.default_rng(0)) == ("a b v", pytest.approx(2 / 3))


def test_several_cuts_take_turns():
    """Two to four changes from one text to the other and back; each piece is a run of its text, in its order."""
    counts = Counter()
    for seed in range(300):
        text, share = take_turns("a b c d e f g h", "r s t u v w x y z", np.random.default_rng(seed))
        words = text.split()
        own = [word in "abcdefgh" for word in words]
        assert len(words) == 8
        assert sum(own) / 8 == pytest.approx(share)
        assert all(word == "abcdefgh"[i] for i, word in enumerate(words) if own[i])
        runs = ["".join(run) for mine, run in groupby(words, key=lambda word: word in "abcdefgh") if not mine]
        assert all(run in "rstuvwxyz" for run in runs)
        counts[sum(a != b for a, b in pairwise(own))] += 1
    assert set(counts) == {2, 3, 4}
    assert min(counts.values()) > 60


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("好电影", "坏天气", {"好天气", "好电气"}),  # without spaces: cut between characters
        ("Great!", "what a dull film", {"Great! film"}),  # one word among texts with spaces is not cut
        ("what a film", "dull", {"what dull", "what a dull"}),
        ("x", "y", {"xy"}),
        ("one two three", "", {"one", "one two"}),
        ("", "what a film", {"film"}),
        (" ", "what a film", {"film"}),
        ("", "", {""}),
    ],
)
def test_joining_short_and_unspaced_texts(text, other, expected):
    made = [join(text, other, np.random.default_rng(seed)) for seed in range(40)]
    assert {joined for joined, _ in made} == expected
    assert all(0 <= share <= 1 for _, share in made)


def test_far_shuffles_words_or_draws_them_from_all_texts():
    bags = Counter(" ".join(sorted(text.split())) for text, _ in SINGLE.given)
    vocabulary = {word for text, _ in SINGLE.given for word in text.split()}
    texts = [text.row[0] for text in many(Far(), SINGLE)]
    shuffled = [" ".join(sorted(text.split())) in bags for text in texts]
    assert 0.4 < np.mean(shuffled) < 0.6
    assert {word for text in texts for word in text.split()} <= vocabulary
    known = {text for text, _ in SINGLE.given}
    assert np.mean([text in known for text in texts]) < 0.02


def test_far_text_is_as_long_as_a_data_text():
    lengths = {len(text.split()) for text, _ in SINGLE.given}
    assert {len(text.row[0].split()) for text in many(Far(), SINGLE)} <= lengths


def test_words_are_drawn_from_a_bounded_number_of_texts():
    """A text of thousands of words must not mean reading thousands of texts for each noise text."""
    pool = Pool(SENTENCES)
    assert len(draw_words(pool, 3000, np.random.default_rng(0)).split()) == 3000
    assert pool.read == MOST_TEXTS


def test_shuffling_keeps_the_words():
    for text in ("a b c d e f", "好电影 天气", "好电影"):
        mixed = shuffle(text, np.random.default_rng(1))
        assert sorted(to_words(mixed)[0]) == sorted(to_words(text)[0])


def test_texts_of_a_file():
    given = Pool(["a page", "another page", "a third"])
    texts = [text.row for text in many(Others(given), SINGLE)]
    assert {text for text, _ in texts} == {"a page", "another page", "a third"}
    assert {pair for _, pair in texts} == {None}
    for_pairs = [text.row for text in many(Others(given), PAIRS)]
    assert {pair for _, pair in for_pairs} == {"a page", "another page", "a third"}
    of_pairs = Others(Pool([("first", "second"), ("third", "fourth")]))
    assert {text.row for text in many(of_pairs, PAIRS)} == {("first", "second"), ("third", "fourth")}
    assert {text.row for text in many(of_pairs, SINGLE)} == {("first", None), ("third", None)}


with_words = st.text(max_size=40).filter(lambda text: text.strip())


@pytest.mark.parametrize("name", ["splice", "same-label", "other-label", *WAYS, "far"])
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(with_words, min_size=1, max_size=6), seed=st.integers(0, 2**32))
@example(rows=ODD, seed=0)
@example(rows=ODD[::-1], seed=1)
@example(rows=["x"], seed=0)
@example(rows=["好电影", "a fine film"], seed=2)
def test_odd_texts_give_texts(name, rows, seed):
    """Single texts and pairs: never a failure, never an empty text."""
    text = write(SOURCES[name], Pool(rows), seed)
    assert text.row[0].strip()
    assert text.row[1] is None
    first, second = write(SOURCES[name], Pool([(row, rows[0]) for row in rows]), seed).row
    assert first.strip()
    assert second.strip()


@pytest.mark.parametrize("name", ["splice", *WAYS, "far"])
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.sampled_from(["", " ", "\t\n", "a", "a b"]), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_blank_texts_do_no_harm(name, rows, seed):
    assert isinstance(write(SOURCES[name], Pool(rows), seed).row[0], str)
    first, second = write(SOURCES[name], Pool([(row, "") for row in rows]), seed).row
    assert isinstance(first, str)
    assert isinstance(second, str)
