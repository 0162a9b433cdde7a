"""The noise store: what a shard depends on, resuming, damage, growth, refusal, and what is thrown away."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from ebmcal.data import load_texts
from ebmcal.errors import EbmcalError
from ebmcal.noise import filling as noise_sampling
from ebmcal.noise.filling import decode, fill, make_shard, show_hidden, show_masked, split_at
from ebmcal.noise.masking import Piece
from ebmcal.noise.sampler import Row
from ebmcal.noise.store import FORMAT, RECORD, NoiseSettings, NoiseStore, Shard, sources_of
from ebmcal.progress import Reporter
from ebmcal.storage.checksums import checksum, fingerprint
from tiny_models import SENTENCES, make_noise_lm

SETTINGS = NoiseSettings(top_k=5, samples_per_mask=2, sources_per_shard=5, seed=3, precision="fp32")
CARD = {"name": "small", "mode": "gaps", "mask_ratio": 0.4, "max_length": 24}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return save_texts(tmp_path_factory.mktemp("texts"), [{"text": s} for s in SENTENCES[:12]])


def save_texts(folder, rows, pair=None):
    (folder / "texts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return load_texts(folder / "texts.jsonl", folder / "cache", text_pair_column=pair)


def ending_lm(mode, **changes):
    """A noise LM that ends each gap now and then; untrained ones hardly ever do."""
    lm = make_noise_lm("llama", mode=mode, max_length=24, **changes)
    inner = lm.model.forward

    def forward(**kwargs):
        out = inner(**kwargs)
        out.logits[:, -1, lm.markers.end] = out.logits[:, -1].max(dim=-1).values
        return out

    lm.model.forward = forward
    return lm


@pytest.fixture
def lm(monkeypatch):
    found = ending_lm("gaps")
    monkeypatch.setattr(noise_sampling, "load_for_sampling", lambda folder, settings: found)
    return found


def open_store(folder, settings=SETTINGS, data="data"):
    return NoiseStore.open(folder, settings.identity(data, CARD, "key"))


def filled(folder, texts, n, reporter=None):
    store = open_store(folder)
    fill(store, folder, texts, n, reporter or Reporter())
    return store


def files(folder):
    return {p.name: checksum(p) for p in sorted(folder.glob("shard-*"))}


class Lines(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def test_each_round_goes_through_all_sources_in_an_order_of_its_own():
    shards = [sources_of(number, 12, SETTINGS) for number in range(6)]
    assert [round_ for round_, _ in shards] == [0, 0, 0, 1, 1, 1]
    rounds = [np.concatenate([rows for r, rows in shards if r == i]) for i in (0, 1)]
    assert all(sorted(order) == list(range(12)) for order in rounds)
    assert rounds[0].tolist() != rounds[1].tolist()


def test_a_filled_store_says_where_each_text_came_from(lm, texts, tmp_path):
    store = filled(tmp_path, texts, 30)
    rows = list(store.rows())
    assert len(rows) == len(store) == 30
    originals = {int(i): text for i, (text, _) in zip(texts.ids, texts.texts(), strict=True)}
    for row in rows:
        (ids,) = lm.encode([(originals[row["source_id"]], None)])
        assert row["text_pair"] is None
        assert row["text"].strip()
        assert row["masked"].count("<M>") == len(row["hidden"]) >= 1
        assert row["identical"] == (row["text"] == lm.decode(ids))
        kept = [part for part in row["masked"].split("<M>") if part.strip()]
        assert all(part.strip() in row["text"] for part in kept)  # gaps keep the other words
    assert json.loads(pq.read_metadata(tmp_path / "shard-00000.parquet").metadata[b"identity"]) == store.identity
    keys = [(row["round"], row["source_id"], row["sample"]) for row in rows]
    assert len(set(keys)) == len(keys)


def test_sources_are_masked_anew_in_each_round(lm, texts, tmp_path):
    masked = {}
    for row in filled(tmp_path, texts, 70).rows():
        masked.setdefault(row["source_id"], {})[row["round"]] = row["masked"]
    several = [by_round for by_round in masked.values() if len(by_round) > 1]
    assert several
    assert any(len(set(by_round.values())) > 1 for by_round in several)


def test_an_interrupted_fill_goes_on_and_gives_the_same_files(lm, texts, tmp_path, monkeypatch):
    whole = filled(tmp_path / "whole", texts, 30)
    made = []

    def interrupted(*args):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(args[2])
        return make_shard(*args)

    with monkeypatch.context() as patch:
        patch.setattr(noise_sampling, "make_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            filled(tmp_path / "broken", texts, 30)
    assert len(files(tmp_path / "broken")) == 2
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "broken").glob("shard-*")}
    resumed = filled(tmp_path / "broken", texts, 30)
    assert {name: (tmp_path / "broken" / name).stat().st_mtime_ns for name in before} == before
    assert files(tmp_path / "broken") == files(tmp_path / "whole")
    assert list(resumed.rows()) == list(whole.rows())


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_a_damaged_shard_is_made_again_the_same(lm, texts, tmp_path, damage):
    filled(tmp_path, texts, 30)
    before, victim = files(tmp_path), tmp_path / "shard-00001.parquet"
    content = bytearray(victim.read_bytes())
    if damage == "cut":
        victim.write_bytes(content[:-20])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    else:
        victim.unlink()
    lines = Lines()
    filled(tmp_path, texts, 30, lines)
    assert files(tmp_path) == before
    assert "shard-00001.parquet" in lines.lines[0]
    assert sorted(NoiseStore.open(tmp_path).shards) == list(range(len(before)))


@pytest.mark.parametrize("damage", ["cut", "flipped", "glued", "first line", "missing"])
def test_a_damaged_record_costs_no_shard(lm, texts, tmp_path, damage):
    store = filled(tmp_path, texts, 30)
    before, record = files(tmp_path), tmp_path / RECORD
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("shard-*")}
    empty, first, *others, last = record.read_text().split("\n")
    if damage == "cut":  # the process died while it wrote
        record.write_text("\n".join([empty, first, *others, last[: len(last) // 2]]))
    elif damage == "flipped":
        record.write_text("\n".join([empty, first, *others, last.replace('"rows": ', '"rows": 1')]))
    elif damage == "glued":
        record.write_bytes("\n".join([empty, first, *others, last]).encode() + b"\xff\x00")
    elif damage == "first line":
        record.write_text("\n".join([empty, first.replace("format", "from"), *others, last]))
    else:
        record.unlink()
    if damage in ("first line", "missing"):
        with pytest.raises(EbmcalError, match=RECORD):
            NoiseStore.open(tmp_path)
    else:
        known = NoiseStore.open(tmp_path).shards
        assert known == {n: entry for n, entry in store.shards.items() if n in known}
        assert len(known) == len(before) - 1
    lines = Lines()
    NoiseStore.open(tmp_path, store.identity, lines.say)
    assert RECORD in lines.lines[0]
    filled(tmp_path, texts, 30)
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.glob("shard-*")}
    assert NoiseStore.open(tmp_path).shards == store.shards
    assert NoiseStore.open(tmp_path).identity == store.identity


def test_entering_a_shard_writes_one_line(lm, texts, tmp_path):
    store = filled(tmp_path, texts, 30)
    before = (tmp_path / RECORD).read_bytes()
    store.add(99, Shard([], {"unfinished": [0] * 10}))
    after = (tmp_path / RECORD).read_bytes()
    assert after.startswith(before)
    assert after[len(before) :].count(b"\n") == 1
    assert list(NoiseStore.open(tmp_path).rows()) == list(store.rows())
    assert {p.name for p in tmp_path.iterdir()} == {RECORD, *files(tmp_path)}


def test_nothing_is_done_twice(lm, texts, tmp_path, monkeypatch):
    filled(tmp_path, texts, 30)
    monkeypatch.setattr(noise_sampling, "make_shard", None)
    lines = Lines()
    store = filled(tmp_path, texts, 30, lines)
    assert lines.lines == [f"noise: {len(store)} texts are there already"]


def test_growth_keeps_the_first_texts(lm, texts, tmp_path):
    small = list(filled(tmp_path, texts, 20).rows(20))
    grown = filled(tmp_path, texts, 60)
    assert len(grown) >= 60 > len(small)
    assert list(grown.rows(20)) == small
    assert len(list(grown.rows(33))) == 33


def test_as_many_texts_as_were_asked_for(lm, texts, tmp_path):
    """The last shard is cut; a store that grew is to the bit the one that was made at once."""
    for n in (3, 7, 20, 33):
        store = filled(tmp_path / "grown", texts, n)
        assert sum(pq.read_metadata(p).num_rows for p in (tmp_path / "grown").glob("shard-*")) == len(store) == n
    at_once = filled(tmp_path / "at once", texts, 33)
    assert files(tmp_path / "grown") == files(tmp_path / "at once")
    assert NoiseStore.open(tmp_path / "grown").shards == at_once.shards
    assert len(filled(tmp_path / "grown", texts, 5)) == 33  # what is there stays


@pytest.mark.parametrize("n_texts", [0, 1, 4, 9, 10, 50])
def test_no_more_of_a_shard_is_written_than_is_wanted(lm, texts, monkeypatch, n_texts):
    whole, n_written = make_shard(lm, texts, 0, SETTINGS), []
    write = noise_sampling.sample
    monkeypatch.setattr(
        noise_sampling, "sample", lambda lm, layouts, *rest, **more: (
            n_written.append(len(layouts)) or write(lm, layouts, *rest, **more)
        )
    )  # fmt: skip
    part = make_shard(lm, texts, 0, SETTINGS, n_texts)
    assert part.rows == whole.rows[: len(part.rows)]
    assert part.is_whole == (sum(n_written) == SETTINGS.sources_per_shard)
    assert part.is_whole or len(part.rows) > n_texts  # so that it is known to go on behind the cut
    if n_texts < 4:
        assert sum(n_written) < SETTINGS.sources_per_shard
    for reason, places in part.thrown_away.items():
        assert places == whole.thrown_away[reason][: len(places)]


def test_samples_that_were_thrown_away_behind_a_cut_are_not_counted(texts, tmp_path):
    store, row = open_store(tmp_path), {"round": 0, "sample": 0, "text": "a", "identical": False}
    shard = Shard([{"source_id": i, **row} for i in range(4)], {"empty": [0, 2, 4], "separator": [3, 3]})
    store.add(0, shard, 2)
    assert store.thrown_away() == {"empty": 1}
    store.add(0, shard, 3)
    assert store.thrown_away() == {"empty": 2}
    store.add(0, shard, 4)
    assert store.thrown_away() == {"empty": 3, "separator": 2}  # it is whole, to the end
    assert not store.shards[0].get("cut")


def test_growth_never_alters_a_text_that_is_there(texts, tmp_path, monkeypatch):
    """Not even where the LM would now write another, as on some GPUs."""
    shards_of(monkeypatch, 10, {})
    filled(tmp_path, texts, 14)
    before = (tmp_path / "shard-00000.parquet").stat().st_mtime_ns
    made = shards_of(monkeypatch, 10, {}, text="other")
    grown = filled(tmp_path, texts, 18)
    assert made == [1]
    assert [row["text"] for row in grown.rows()] == ["a"] * 14 + ["other"] * 4
    assert (tmp_path / "shard-00000.parquet").stat().st_mtime_ns == before


def named(*numbers):
    return [{"source_id": n, "round": 0, "sample": 0, "text": f"t{n}", "identical": False} for n in numbers]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((1, 2, 3), (0, 1, 2, 3), [1, 2, 0, 3]), ((0, 1, 2), (1, 2, 3), [0, 1, 2, 3])],
)
def test_growth_loses_and_doubles_no_sample_where_others_became_usable(tmp_path, first, second, expected):
    """A part of a shard is drawn in other batches than the whole, and logits in bfloat16 are rounded in another way."""
    store = open_store(tmp_path)
    store.add(0, Shard(named(*first), {}), 2)
    store.add(0, Shard(named(*second), {}), 4)
    assert [row["source_id"] for row in store.rows()] == expected


def test_few_samples_do_not_stop_a_store(tmp_path):
    store, shard = open_store(tmp_path), Shard(named(*range(9)), {"unfinished": [0, 0, 0]})
    for n in (1, 9):
        store.add(0, shard, n)
        store.check_usable()


def test_a_cut_shard_of_another_store_is_not_taken_for_a_grown_one(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        settings = NoiseSettings(samples_per_mask=2, sources_per_shard=5, seed=seed)
        open_store(tmp_path / name, settings).add(0, Shard(named(*range(9)), {}), 4)
    shutil.copy(tmp_path / "b" / "shard-00000.parquet", tmp_path / "a" / "shard-00000.parquet")
    store = open_store(tmp_path / "a", NoiseSettings(samples_per_mask=2, sources_per_shard=5, seed=1))
    assert store.drop_damaged() == ["shard-00000.parquet"]


def test_a_shard_that_grew_but_was_not_entered_is_not_called_damaged(lm, texts, tmp_path):
    filled(tmp_path, texts, 13)
    cut = (tmp_path / RECORD).read_bytes()
    grown = filled(tmp_path, texts, 17)
    (tmp_path / RECORD).write_bytes(cut)  # killed before its line
    lines = Lines()
    again = filled(tmp_path, texts, 17, lines)
    assert lines.lines == ["noise: 17 texts are there already"]
    assert again.shards == grown.shards


def test_shards_in_any_order_are_cut_at_the_end(lm, texts, tmp_path):
    def backwards(store, folder, texts, n_wanted):
        for number in reversed(store.likely_shards(n_wanted + 20, limit=9)):
            yield number, make_shard(lm, texts, number, SETTINGS)

    for n in (23, 27):
        store = open_store(tmp_path / "backwards")
        fill(store, tmp_path, texts, n, Reporter(), backwards)
    at_once = filled(tmp_path / "at once", texts, 27)
    assert files(tmp_path / "backwards") == files(tmp_path / "at once")
    assert NoiseStore.open(tmp_path / "backwards").shards == at_once.shards


def test_a_store_of_other_settings_or_data_is_refused(tmp_path):
    open_store(tmp_path)
    with pytest.raises(EbmcalError, match=r"made for other data \(data: there data, wanted other\)"):
        open_store(tmp_path, data="other")
    with pytest.raises(EbmcalError, match=r"other settings.*'top_k': 5.*'top_k': 6.*Choose another folder"):
        open_store(tmp_path, NoiseSettings(top_k=6, samples_per_mask=2, sources_per_shard=5, seed=3, precision="fp32"))
    assert open_store(tmp_path).identity == NoiseStore.open(tmp_path).identity


@pytest.mark.parametrize("left", ["nothing", "the lines of the shards"])
def test_a_store_of_others_is_refused_also_when_its_record_is_lost(lm, texts, tmp_path, left):
    filled(tmp_path, texts, 30)
    _, _, *shards = (tmp_path / RECORD).read_text().split("\n")
    (tmp_path / RECORD).write_text("" if left == "nothing" else "\n".join(["", *shards]))
    before = (tmp_path / RECORD).read_bytes()
    with pytest.raises(EbmcalError, match=r"made for other data"):
        open_store(tmp_path, data="other")
    assert (tmp_path / RECORD).read_bytes() == before


def test_folders_that_are_no_store(tmp_path):
    with pytest.raises(EbmcalError, match=rf"holds no noise: {RECORD} is missing"):
        NoiseStore.open(tmp_path)
    for text in ("{", "[]", '{"shards": {}}', '["identity", {"format": 3}, "0"]'):
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(EbmcalError, match="is not the record of a noise store"):
            NoiseStore.open(tmp_path)


def test_stores_of_other_versions_are_refused(tmp_path):
    identity = open_store(tmp_path / "later").identity | {"format": FORMAT + 1}
    (tmp_path / "later" / RECORD).write_text(json.dumps(["identity", identity, fingerprint("identity", identity)]))
    for opening in (lambda: NoiseStore.open(tmp_path / "later"), lambda: open_store(tmp_path / "later")):
        with pytest.raises(EbmcalError, match=rf"by another version \(format: there {FORMAT + 1}, wanted {FORMAT}\)"):
            opening()
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(EbmcalError, match=r"made by an earlier version of ebmcal.*noise sample"):
        NoiseStore.open(tmp_path)


def test_reading_a_damaged_shard_names_it(lm, texts, tmp_path):
    store = filled(tmp_path, texts, 10)
    path = tmp_path / "shard-00000.parquet"
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 4] ^= 1
    for content in (bytes(flipped), b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(EbmcalError, match=r"shard-00000.parquet is damaged"):
            list(store.rows())


def test_the_key_is_that_of_the_identity(tmp_path):
    first, other = open_store(tmp_path / "a"), open_store(tmp_path / "b", data="other")
    assert first.key == open_store(tmp_path / "c").key != other.key


def make_row(lm, ids, unfinished=False):
    row = Row(0, [Piece([], [], [])], np.zeros(1), 1)
    row.written, row.unfinished = [list(ids)], unfinished
    return row


def test_why_samples_are_thrown_away():
    lm = make_noise_lm()
    sep = lm.markers.separator
    first, second = (lm.encode([(text, None)])[0].tolist() for text in ("the film", "is dull"))
    cases = [
        ([*first, sep, *second], True, (("the film", "is dull"), None)),
        (first, False, (("the film", None), None)),
        (first, True, (("", None), "separator")),
        ([*first, sep, *second, sep], True, (("", None), "separator")),
        ([*first, sep, *second], False, (("", None), "separator")),
        ([*first, sep], True, (("", None), "empty")),
        ([], False, (("", None), "empty")),
    ]
    for ids, is_pair, expected in cases:
        assert decode(lm, make_row(lm, ids), is_pair) == expected
    assert decode(lm, make_row(lm, first, unfinished=True), False) == (("", None), "unfinished")
    assert split_at([sep, 1, sep], sep) == [[], [1], []]


def test_a_continuation_without_an_end_is_cut_back(tmp_path):
    lm = make_noise_lm(mode="continue")
    sep = lm.markers.separator

    def written(kept, rest, is_pair=False):
        kept, rest = (
            [t for part in x for t in (*lm.encode([(part, None)])[0].tolist(), sep)][:-1] for x in (kept, rest)
        )
        row = Row(0, [Piece(kept, [], [])], np.zeros(1), 1)
        row.written, row.unfinished = [rest], True
        return decode(lm, row, is_pair)

    assert written(["the film"], [" is dull. so is the"]) == (("the film is dull.", None), None)
    assert written(["the film"], [" is dull\nso is. it"]) == (("the film is dull", None), None)
    assert written(["the film."], [" is dull so is the"]) == (("", None), "unfinished")
    assert written(["a joy.", "the film"], [' is "dull!" so is'], is_pair=True) == (
        ("a joy.", 'the film is "dull!"'),
        None,
    )


def test_samples_are_kept_or_counted(tmp_path):
    """Pairs rewritten as a whole by an untrained LM mostly lose their separator."""
    pairs = [{"text": a, "pair": b} for a, b in zip(SENTENCES[:6], SENTENCES[6:12], strict=True)]
    texts = save_texts(tmp_path, [*pairs, {"text": "", "pair": ""}], pair="pair")
    lm = ending_lm("infill")
    rows, thrown_away, _ = make_shard(lm, texts, 0, NoiseSettings(samples_per_mask=30, sources_per_shard=7))
    assert len(thrown_away["separator"]) > 50
    assert len(rows) + sum(map(len, thrown_away.values())) == 7 * 30
    assert all(row["text"] and row["text_pair"] for row in rows)


def test_unfinished_samples_with_open_gaps_are_counted(texts):
    """Rows that reach their limit before their last gap."""
    lm = make_noise_lm("llama", mode="gaps", max_length=24)
    inner = lm.model.forward

    def never_ends(**kwargs):
        out = inner(**kwargs)
        out.logits[:, -1, lm.markers.end] = -1e9
        return out

    lm.model.forward = never_ends
    rows, thrown_away, _ = make_shard(lm, texts, 0, SETTINGS)
    assert rows == []
    assert thrown_away == {"unfinished": [0] * 10}


def shards_of(monkeypatch, n_rows, thrown_away, text="a", masked="<M>"):
    """Every shard has so many rows and throws so many samples away before; returns which shards were made."""
    row = {"round": 0, "sample": 0, "masked": masked, "text": text, "text_pair": None, "identical": False}
    made = []
    monkeypatch.setattr(noise_sampling, "load_for_sampling", lambda *_: None)
    shard = Shard(
        [{"source_id": i, **row} for i in range(n_rows)], {reason: [0] * n for reason, n in thrown_away.items()}
    )
    monkeypatch.setattr(noise_sampling, "make_shard", lambda *args: made.append(args[2]) or shard)
    return made


def test_an_lm_that_writes_nothing_usable_is_told(texts, tmp_path, monkeypatch):
    shards_of(monkeypatch, 0, {"separator": 10})
    with pytest.raises(EbmcalError, match=r"21 shards without one usable text \(thrown away: {'separator': 210}\)"):
        filled(tmp_path, texts, 30)


def test_sampling_stops_when_most_samples_do_not_end(texts, tmp_path, monkeypatch):
    made = shards_of(monkeypatch, 4, {"unfinished": 6})
    for _ in range(2):  # the second time without a shard more
        with pytest.raises(EbmcalError, match=r"6 of the first 10 noise samples did not end.*--noise-lm-steps"):
            filled(tmp_path, texts, 30)
        assert made == [0]


@pytest.mark.parametrize(("n_unfinished", "said"), [(0, 0), (1, 0), (2, 1), (20, 1)])
def test_many_samples_that_do_not_end_are_said_once_and_at_once(texts, tmp_path, monkeypatch, n_unfinished, said):
    shards_of(monkeypatch, 20, {"unfinished": n_unfinished})
    lines = Lines()
    filled(tmp_path, texts, 60, lines)
    assert sum("did not end" in line and "--noise-lm-steps" in line for line in lines.lines) == said
    assert len(lines.lines) == said + 1


@pytest.mark.parametrize(("text", "said"), [("a b c d", 0), ("a b c x", 0), ("a b x y", 1)])
def test_an_lm_that_has_not_learned_to_keep_words_is_said_once_and_at_once(texts, tmp_path, monkeypatch, text, said):
    shards_of(monkeypatch, 20, {}, text, masked="a b c d e <M>")
    lines = Lines()
    filled(tmp_path, texts, 60, lines)
    assert sum("50% of the words" in line and "--noise-lm-steps" in line for line in lines.lines) == said
    assert len(lines.lines) == said + 1


def test_an_lm_that_reads_labels_is_told_the_own_or_another(tmp_path):
    names = ("bad", "fair", "good")
    rows = [{"text": text, "label": names[i % 3]} for i, text in enumerate(SENTENCES[:12])]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    texts = load_texts(tmp_path / "texts.jsonl", tmp_path / "cache", label_column="label")
    own = {int(i): names[label] for i, label in zip(texts.ids, texts.labels, strict=True)}
    lm = replace(ending_lm("gaps"), label_names=names)
    told = {}
    for condition in ("none", "own", "other"):
        written, *_ = make_shard(lm, texts, 0, replace(SETTINGS, sources_per_shard=12, condition=condition))
        told[condition] = {(row["source_id"], row["told"]) for row in written}
    assert {name for _, name in told["none"]} == {None}
    assert all(own[i] == name for i, name in told["own"])
    assert all(own[i] != name for i, name in told["other"])
    assert {name for _, name in told["other"]} == set(names)


def test_empty_sources_are_counted(tmp_path):
    texts = save_texts(tmp_path, [{"text": ""}, {"text": "the film is dull"}])
    rows, thrown_away, _ = make_shard(ending_lm("gaps"), texts, 0, SETTINGS)
    assert len(thrown_away.pop("empty_source")) == 1
    assert {row["source_id"] for row in rows} <= {1}
    assert len(rows) + sum(map(len, thrown_away.values())) == 2


def test_noise_of_pairs_in_half_mode_keeps_one_sentence(tmp_path):
    pairs = [{"text": a, "pair": b} for a, b in zip(SENTENCES[:6], SENTENCES[60:66], strict=True)]
    texts = save_texts(tmp_path, pairs, pair="pair")
    rows, *_ = make_shard(ending_lm("half"), texts, 0, NoiseSettings(samples_per_mask=4))
    originals = dict(zip(texts.ids.tolist(), texts.texts(), strict=True))
    assert rows
    for row in rows:
        source = originals[row["source_id"]]
        assert (row["text"] == source[0]) or (row["text_pair"] == source[1])
    assert not all(row["identical"] for row in rows)


def test_masked_texts_are_shown_as_a_reader_sees_them():
    lm = make_noise_lm()
    (ids,) = lm.encode([("the film is dull", "a joy")])
    masked = np.zeros(len(ids), dtype=bool)
    masked[1:3] = True
    shown, hidden = show_masked(lm, ids, masked), show_hidden(lm, ids, masked)
    assert shown == f"{lm.decode(ids[:1])} <M>{lm.tokenizer.decode(ids[3:])}"
    assert "<SEP>" in shown
    assert hidden == [lm.decode(ids[1:3])]
