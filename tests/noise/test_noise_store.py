"""Generating and storing noise: what a text depends on, resuming, growth, corruption, and rejected samples."""

from dataclasses import asdict, replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from noise_models import ending_lm, make_noise_lm, make_texts

from ebmcal.errors import EbmcalError
from ebmcal.noise import NoiseConfig, generation
from ebmcal.noise.causal_lm import Layout
from ebmcal.noise.generation import MARKER, NoiseStore, Shard, decode_sample, fill_store, gather, generate_shard
from ebmcal.noise.sampler import Sample
from ebmcal.progress import Reporter
from tiny_models import SENTENCES

SETTINGS = NoiseConfig(top_k=5, samples_per_mask=2, seed=3, precision="fp32")
TEXTS = make_texts(SENTENCES[:12])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr("ebmcal.noise.generation.SHARD_SLOTS", 5)


@pytest.fixture
def lm(monkeypatch):
    """The LM that every store of a test uses."""
    found = ending_lm("infill")
    monkeypatch.setattr(generation, "load_for_sampling", lambda directory, settings: found)
    return found


def open_store(directory, data="data", **changes):
    return NoiseStore.open(directory, {"data": data, **asdict(replace(SETTINGS, **changes))})


def filled(directory, n, reporter=None, engine=generation.generate_locally):
    store = open_store(directory)
    fill_store(store, directory, TEXTS, n, SETTINGS, reporter or Reporter(), engine)
    return store


def rows(n, reason=None, **changes):
    base = {"source_id": "0", "sample": 0, "label": None, "masked": "<M>", "hidden": ["b"], "text": "a"}
    shard = [base | {"text_pair": None} | changes] * n
    return Shard(shard, reason or {})


def fixed_shards(monkeypatch, n_rows, rejected, **changes):
    """Every shard has these rows and rejected samples; returns the slots that were generated."""
    made = []
    monkeypatch.setattr(generation, "load_for_sampling", lambda *_: None)
    monkeypatch.setattr(generation, "gather", lambda texts, start, stop, seed: made.append((start, stop)))
    monkeypatch.setattr(generation, "generate_shard", lambda *_: rows(n_rows, rejected, **changes))
    return made


def test_each_round_goes_through_all_sources_in_a_new_order():
    rounds = [gather(TEXTS, start, start + 12, seed=3) for start in (0, 12)]
    assert [{slot.round for slot in slots} for slots in rounds] == [{0}, {1}]
    positions = [[slot.position for slot in slots] for slots in rounds]
    assert all(sorted(order) == list(range(12)) for order in positions)
    assert positions[0] != positions[1]
    assert gather(TEXTS, 10, 14, seed=3) == rounds[0][10:] + rounds[1][:2]
    assert [slot.text for slot in rounds[0]] == TEXTS[positions[0]]


def test_rows_describe_the_origin_of_each_text(lm, tmp_path):
    store = filled(tmp_path, 30)
    found = store.rows(30)
    assert len(found) == 30 <= len(store)
    for row in found:
        assert row["text"].strip()
        assert row["text_pair"] is row["label"] is None
        assert row["masked"].count("<M>") == len(row["hidden"]) >= 1
    assert store.n_samples == sum(info.n_texts for info in store.shards.values()) + sum(store.rejected.values())


def test_texts_do_not_depend_on_the_shards(lm, tmp_path):
    """Made at once, grown in steps, or in any order: the same texts."""
    expected = filled(tmp_path / "at once", 33).rows(33)
    for n in (3, 7, 20, 33):
        grown = filled(tmp_path / "grown", n)
    assert grown.rows(33) == expected
    assert len(grown.shards) > len(open_store(tmp_path / "at once").shards)

    def backwards(store, directory, texts, n_texts, settings):
        while ranges := store.missing(n_texts, limit=9):
            for start, stop in reversed(ranges):
                yield start, stop, generate_shard(lm, gather(texts, start, stop, settings.seed), settings)

    assert filled(tmp_path / "backwards", 33, engine=backwards).rows(33) == expected


def test_an_interrupted_generation_resumes(lm, tmp_path, monkeypatch):
    expected, made = filled(tmp_path / "whole", 30).rows(30), []

    def interrupted(*args):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(args)
        return generate_shard(*args)

    with monkeypatch.context() as patch:
        patch.setattr(generation, "generate_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            filled(tmp_path / "broken", 30)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "broken").glob("shard-*")}
    assert len(before) == 2
    assert filled(tmp_path / "broken", 30).rows(30) == expected
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_an_unreadable_shard_is_made_again_and_a_missing_one_too(lm, tmp_path):
    expected = filled(tmp_path, 30).rows(30)
    first, second, *_ = sorted(tmp_path.glob("shard-*"))
    first.write_bytes(first.read_bytes()[:-20])
    second.unlink()
    assert filled(tmp_path, 30).rows(30) == expected


def test_a_corrupt_page_is_reported_with_its_file(lm, tmp_path):
    store = filled(tmp_path, 10)
    path = tmp_path / "shard-000000000-000000005.parquet"
    content, column = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0).column(0)
    content[column.dictionary_page_offset + column.total_compressed_size - 1] ^= 1  # the last byte of its data page
    path.write_bytes(content)
    with pytest.raises(EbmcalError, match=r"shard-000000000-000000005.parquet is corrupt .* Delete it"):
        store.rows(10)


def test_a_directory_that_is_no_store(tmp_path):
    with pytest.raises(EbmcalError, match=rf"is not a noise store: it has no {MARKER}"):
        NoiseStore.open(tmp_path)


def test_missing_slots_fill_gaps_and_follow_the_rate_of_usable_samples(tmp_path):
    """Two samples per slot, five slots per shard."""
    store = open_store(tmp_path)
    assert store.missing(20, limit=99) == [(0, 5), (5, 10)]
    assert store.missing(21, limit=99) == [(0, 5), (5, 10), (10, 11)]
    assert store.missing(20, limit=2) == [(0, 5), (5, 10)]
    assert store.missing(3, limit=99) == [(0, 2)]
    store.add(5, 10, rows(5, {"unfinished": 5}))
    assert len(store) == 0  # nothing before the gap
    assert store.usable_share == 0.5
    assert store.missing(10, limit=99) == [(0, 5)]
    store.add(0, 5, rows(5, {"unfinished": 5}))
    assert len(store) == 10
    assert store.missing(10, limit=99) == []
    assert store.missing(12, limit=99) == [(10, 13)]
    assert pq.read_metadata(tmp_path / "shard-000000005-000000010.parquet").num_rows == 5


def test_generation_stops_when_few_samples_are_usable(tmp_path, monkeypatch):
    made = fixed_shards(monkeypatch, 2, {"unfinished": 8})
    for _ in range(2):  # the second time without another shard
        with pytest.raises(EbmcalError, match=r"Only 20% of 10 noise samples .*'unfinished': 8.*Train it longer"):
            filled(tmp_path, 30)
        assert made == [(0, 5)]


def make_sample(ids, unfinished=False):
    one = Sample(Layout([], []), np.zeros(1), 1, is_pair=True)
    one.written, one.is_unfinished = list(ids), unfinished
    return one


def test_why_samples_are_rejected():
    lm = make_noise_lm()
    sep = lm.markers.separator
    first, second = (lm.encode((text, None)).tolist() for text in ("the film", "is dull"))
    for ids, is_pair, expected in (
        ([*first, sep, *second], True, (("the film", "is dull"), None)),
        (first, False, (("the film", None), None)),
        (first, True, (("", None), "separator")),
        ([*first, sep, *second, sep], True, (("", None), "separator")),
        ([*first, sep, *second], False, (("", None), "separator")),
        ([*first, sep], True, (("", None), "empty")),
        ([], False, (("", None), "empty")),
    ):
        assert decode_sample(lm, make_sample(ids), is_pair) == expected
    assert decode_sample(lm, make_sample(first, unfinished=True), False) == (("", None), "unfinished")


def shard_of(lm, texts, **changes):
    settings = replace(SETTINGS, **changes)
    return generate_shard(lm, gather(texts, 0, len(texts), settings.seed), settings)


def test_every_sample_is_kept_or_counted():
    """An untrained LM that rewrites pairs mostly loses the separator."""
    pairs = list(zip(SENTENCES[:6], SENTENCES[6:12], strict=True))
    shard = shard_of(ending_lm("infill"), make_texts([*pairs, ("", "")]), samples_per_mask=30)
    assert shard.rejected["separator"] > 50
    assert len(shard.rows) + sum(shard.rejected.values()) == 7 * 30
    assert all(row["text"] and row["text_pair"] for row in shard.rows)
    assert all(row["masked"].count("<M>") == len(row["hidden"]) and "<SEP>" in row["masked"] for row in shard.rows)
    single = shard_of(ending_lm("infill"), make_texts(["", "the film is dull"]))
    assert single.rejected["empty source"] == 1
    never = shard_of(ending_lm("infill", end_logit=-1e9), TEXTS)
    assert never == Shard([], {"unfinished": 24})


def test_an_lm_that_reads_labels_gets_the_own_or_another_one():
    names = ("bad", "fair", "good")
    texts = make_texts(SENTENCES[:12], labels=[i % 3 for i in range(12)])
    lm = replace(ending_lm("infill"), label_names=names)
    found = {
        condition: {(int(row["source_id"]), row["label"]) for row in shard_of(lm, texts, condition=condition).rows}
        for condition in ("none", "own", "other")
    }
    assert {label for _, label in found["none"]} == {None}
    assert all(names[i % 3] == label for i, label in found["own"])
    assert all(names[i % 3] != label for i, label in found["other"])
    assert {label for _, label in found["other"]} == set(names)
