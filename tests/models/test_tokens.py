"""Token tables: the round trip to disk, what was cut, and damaged tables."""

import json

import numpy as np
import pytest

from ebmcal.models import tokens
from ebmcal.models.tokens import TokenTable, tokenize, tokenizer_fingerprint
from tiny_models import SENTENCES, make_wordpiece

SINGLES = [(s, None) for s in SENTENCES[:10]]
PAIRS = list(zip(SENTENCES[:10], SENTENCES[10:20], strict=True))


@pytest.mark.parametrize("rows", [SINGLES, PAIRS], ids=["singles", "pairs"])
def test_a_table_holds_what_the_tokenizer_gives(wordpiece, tmp_path, rows):
    tokenize(rows, wordpiece, 64, tmp_path / "table")
    table = TokenTable.open(tmp_path / "table")
    assert len(table) == 10
    assert table.n_truncated == 0
    for i, (first, second) in enumerate(rows):
        expected = wordpiece(first, second)
        ids, types = table[i]
        assert ids.tolist() == expected["input_ids"]
        assert types.tolist() == expected["token_type_ids"]
        assert table.lengths[i] == len(ids)
    assert isinstance(table.ids, np.memmap)
    assert set(table.types.tolist()) == ({0, 1} if rows is PAIRS else {0})


def test_texts_that_were_cut_are_counted(wordpiece, tmp_path):
    lengths = [len(wordpiece(text)["input_ids"]) for text, _ in SINGLES]
    limit = sorted(lengths)[4]
    table = tokenize(SINGLES, wordpiece, limit, tmp_path / "table")
    assert table.n_truncated == sum(length > limit for length in lengths) > 0
    assert table.lengths.max() == limit  # a text of exactly the limit is not counted


def test_pairs_that_were_cut_are_counted(wordpiece, tmp_path):
    table = tokenize(PAIRS, wordpiece, 12, tmp_path / "table")
    assert table.n_truncated == sum(len(wordpiece(*pair)["input_ids"]) > 12 for pair in PAIRS) == 10
    assert all((table[i][0] == wordpiece.sep_token_id).sum() == 2 for i in range(10))  # something of both is left


def test_rows_are_written_in_chunks(wordpiece, tmp_path, monkeypatch):
    whole = tokenize(iter(SINGLES), wordpiece, 64, tmp_path / "whole")
    monkeypatch.setattr(tokens, "CHUNK", 3)
    chunked = tokenize(iter(SINGLES), wordpiece, 64, tmp_path / "chunked")
    for name in ("ids", "types", "offsets"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(chunked, name))


def test_empty_texts_and_empty_tables(wordpiece, tmp_path):
    table = tokenize([("", None), ("the film", None)], wordpiece, 64, tmp_path / "a")
    assert table[0][0].tolist() == [wordpiece.cls_token_id, wordpiece.sep_token_id]
    assert len(tokenize([], wordpiece, 64, tmp_path / "b")) == 0


def test_a_missing_second_text_is_empty(wordpiece, tmp_path):
    table = tokenize([("the film", "a joy"), ("the film", None)], wordpiece, 64, tmp_path / "a")
    assert table[1][0].tolist() == wordpiece(["the film"], [""])["input_ids"][0]


@pytest.mark.parametrize("name", ["meta.json", "ids.npy", "types.npy", "offsets.npy"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "other"])
def test_a_damaged_table_is_no_table(wordpiece, tmp_path, name, damage):
    tokenize(SINGLES, wordpiece, 64, tmp_path / "table")
    path = tmp_path / "table" / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        path.write_bytes(json.dumps({"n": 1}).encode())
    else:
        path.write_bytes(content[: -len(content) // 3] if damage == "cut" else b"")
    assert TokenTable.open(tmp_path / "table") is None


def test_offsets_of_another_table_are_noticed(wordpiece, tmp_path):
    tokenize(SINGLES, wordpiece, 64, tmp_path / "a")
    tokenize(SINGLES[:5], wordpiece, 64, tmp_path / "b")
    (tmp_path / "a" / "offsets.npy").write_bytes((tmp_path / "b" / "offsets.npy").read_bytes())
    assert TokenTable.open(tmp_path / "a") is None


def test_a_failed_run_leaves_no_table(wordpiece, tmp_path):
    def rows():
        yield from SINGLES
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize(rows(), wordpiece, 64, tmp_path / "table")
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_changes_with_the_vocabulary(wordpiece):
    assert tokenizer_fingerprint(wordpiece) == tokenizer_fingerprint(make_wordpiece())
    assert tokenizer_fingerprint(wordpiece) != tokenizer_fingerprint(make_wordpiece(SENTENCES[:20]))


def test_the_fingerprint_does_not_change_by_use():
    """A fast tokenizer remembers the truncation of its last call; the key must not."""
    fresh = make_wordpiece()
    before = tokenizer_fingerprint(fresh)
    fresh(["the film"] * 2, truncation=True, max_length=4)
    assert tokenizer_fingerprint(fresh) == before
