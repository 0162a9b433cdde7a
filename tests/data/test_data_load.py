"""`load_data` on a user's own files: splits, labels, the audit, the cache, and what `Texts` gives back."""

import csv
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data import DataSource, audit_sentences, load_data, load_other_texts, load_texts
from ebmcal.data.store import _sound_info
from ebmcal.errors import EbmcalError
from ebmcal.storage.atomic import writing

NAMES = ["sport", "news", "film", "food", "trade"]


def write_csv(path: Path, rows, header=("text", "label")) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path


@pytest.fixture
def five(tmp_path):
    return write_csv(tmp_path / "topics.csv", [(f"text {i}", NAMES[i % 5]) for i in range(500)])


def load(source_or_path, cache, **options):
    return load_data(DataSource(train=source_or_path, **options), cache)


def contents(data):
    return {name: list(zip(split.texts(), split.labels.tolist(), strict=True)) for name, split in data.splits.items()}


def test_one_file_becomes_three_stratified_splits(five, tmp_path):
    data = load(five, tmp_path / "cache")
    assert {n: len(s) for n, s in data.splits.items()} == {"train": 400, "calibration": 50, "test": 50}
    assert data.label_names == tuple(sorted(NAMES))
    assert data.task_name == "topics"
    assert data.metric == "accuracy"
    assert not data.is_pair
    for split in data.splits.values():
        assert len(set(np.bincount(split.labels))) == 1
        for (text, pair), label, row in zip(split.texts(), split.labels, split.ids, strict=True):
            assert text == f"text {row}"
            assert pair is None
            assert data.label_names[label] == NAMES[row % 5]


def test_given_splits_are_used_as_they_are(five, tmp_path):
    test = write_csv(tmp_path / "test.csv", [("new a", "film"), ("new b", "news")])
    data = load(five, tmp_path / "cache", test=test)
    assert {n: len(s) for n, s in data.splits.items()} == {"train": 450, "calibration": 50, "test": 2}
    assert data.splits["test"].texts() == [("new a", None), ("new b", None)]
    both = load(five, tmp_path / "cache", test=test, calibration=test)
    assert len(both.splits["train"]) == 500
    assert both.audit["splits"]["test"]["also_in_calibration"]["count"] == 2


def test_the_same_rows_in_any_format_give_the_same_data(tmp_path):
    rows = [(f'He said "{i}", and\tleft', NAMES[i % 3]) for i in range(60)]
    write_csv(tmp_path / "a.csv", rows)
    with open(tmp_path / "b.tsv", "w", newline="") as handle:
        csv.writer(handle, delimiter="\t").writerows([("text", "label"), *rows])
    lines = [json.dumps({"label": label, "text": text}) for text, label in rows]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    loaded = [load(tmp_path / n, tmp_path / "cache") for n in ("a.csv", "b.tsv", "c.jsonl", "d.parquet")]
    assert len({data.fingerprint for data in loaded}) == 1
    assert all(contents(data) == contents(loaded[0]) for data in loaded)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (["0", "1", "10", "9"], ("0", "1", "9", "10")),
        (["-1", "0", "1"], ("-1", "0", "1")),
        (["1.0", "2.0"], ("1", "2")),
        (["b", "a", "c"], ("a", "b", "c")),
        (["01", "02", "10"], ("01", "02", "10")),
        (["True", "False"], ("False", "True")),
        ([" yes ", "no"], ("no", "yes")),
    ],
)
def test_label_names(tmp_path, written, names):
    path = write_csv(tmp_path / "a.csv", [(f"t{i}", written[i % len(written)]) for i in range(100)])
    data = load(path, tmp_path / "cache")
    assert data.label_names == names
    train = data.splits["train"]
    values = [written[row % len(written)].strip() for row in train.ids]
    assert [data.label_names[label] for label in train.labels] == [v.removesuffix(".0") for v in values]


def test_pairs(tmp_path):
    rows = [(f"first {i}", f"second {i}", i % 2) for i in range(100)]
    path = write_csv(tmp_path / "a.csv", rows, ("one", "two", "y"))
    data = load(path, tmp_path / "cache", text_column="one", text_pair_column="two", label_column="y")
    assert data.is_pair
    assert data.splits["test"].is_pair
    row = data.splits["test"].ids[0]
    assert data.splits["test"].texts(0, 1) == [(f"first {row}", f"second {row}")]


def test_nothing_is_dropped_silently(tmp_path):
    rows = [(f"text {i}", NAMES[i % 2]) for i in range(100)]
    rows[3] = ("", "news")
    rows[5] = ("text 5", "")
    rows[8] = ("text 6", "sport")
    rows[10] = ("text 7", "sport")  # text 7 is "news" in its own row
    path = write_csv(tmp_path / "train.csv", rows)
    path.write_bytes(path.read_bytes() + b"too,many,fields\ncaf\xe9,news\n")
    test = write_csv(tmp_path / "test.csv", [("text 1", "news"), ("unseen", "sport"), ("gone", "")])
    data = load(path, tmp_path / "cache", test=test, calibration=test)
    files, splits = data.audit["files"], data.audit["splits"]
    assert files["train"]["rows"] == 101
    assert files["train"]["labelled_rows"] == splits["train"]["rows"] == 100
    assert files["train"]["missing_labels"] == {"count": 1, "first_rows": [5]}
    assert files["train"]["set_aside"] == {"too many fields": {"count": 1, "first_lines": [102]}}
    assert files["train"]["cleaned"] == {"invalid UTF-8 replaced": {"count": 1, "first_lines": [103]}}
    assert files["test"]["missing_labels"]["count"] == 1
    assert splits["train"]["empty_texts"] == {"count": 1, "first_rows": [3]}
    assert splits["train"]["duplicates"] == {"count": 2, "first_rows": [8, 10]}
    assert splits["train"]["duplicates_with_another_label"] == {"count": 1, "first_rows": [10]}
    assert splits["test"]["also_in_train"] == {"count": 1, "first_rows": [0]}
    assert sum(splits["train"]["label_counts"].values()) == 100
    json.dumps(data.audit, allow_nan=False)
    said = "\n".join(audit_sentences(data.audit))
    for part in ("1 rows without a label", "too many fields", "empty texts", "also in train", "first lines 103"):
        assert part in said


def test_a_label_called_count_is_just_a_label(tmp_path):
    path = write_csv(tmp_path / "a.csv", [(f"t{i}", ["count", "rows"][i % 2]) for i in range(40)])
    lines = audit_sentences(load(path, tmp_path / "cache").audit)
    assert [line for line in lines if "rows only" not in line] == []


def test_row_limits_are_stratified_and_seeded(five, tmp_path):
    def ids(**options):
        data = load(five, tmp_path / "cache", max_train_rows=50, max_eval_rows=7, **options)
        assert {n: len(s) for n, s in data.splits.items()} == {"train": 50, "calibration": 7, "test": 7}
        assert set(np.bincount(data.splits["train"].labels)) == {10}
        return data.splits["train"].ids.tolist()

    assert ids() == ids() == sorted(ids())
    assert ids() != ids(split_seed=1)


def test_texts_access(five, tmp_path):
    train = load(five, tmp_path / "cache").splits["train"]
    everything = train.texts()
    assert [row for batch in train.batches(7) for row in batch] == everything
    assert train.rows([5, 0, 5]) == [everything[5], everything[0], everything[5]]
    some = train.take([9, 3]).take(np.array([1]))
    assert some.texts() == [everything[3]]
    assert some.labels.tolist() == [train.labels[3]]
    assert some.ids.tolist() == [train.ids[3]]
    assert train.take([]).texts() == []
    again = pickle.loads(pickle.dumps(train))
    assert again.texts(3, 6) == everything[3:6]
    assert again.fingerprint == train.fingerprint


def test_fingerprint_follows_texts_labels_and_order(tmp_path):
    def fingerprint(rows):
        return load_texts(write_csv(tmp_path / "x.csv", rows), tmp_path / "cache", label_column="label").fingerprint

    first = fingerprint([("a", 0), ("b", 1)])
    assert first == fingerprint([("a", 0), ("b", 1)])
    assert len({first, fingerprint([("a", 1), ("b", 0)]), fingerprint([("b", 1), ("a", 0)])}) == 3
    assert fingerprint([("a ", 0), ("b", 1)]) != first


def test_texts_over_many_batches(tmp_path):
    rows = [(f"text {i}", i % 2) for i in range(10_000)] + [("long " * 20_000, 1)] * 60
    texts = load_texts(write_csv(tmp_path / "a.csv", rows), tmp_path / "cache", label_column="label")
    assert len(texts.file._batches) > 3
    wanted = [10_050, 1, 9_999, 4096, 4095, 1]
    assert texts.rows(wanted) == [(rows[i][0], None) for i in wanted]
    assert [row for batch in texts.batches(1000) for row, _ in batch] == [text for text, _ in rows]


def test_load_texts_needs_no_labels_and_maps_numbers_to_names(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("x", "1"), ("y", "0"), ("z", "")])
    assert load_texts(path, tmp_path / "cache").labels.tolist() == [-1, -1, -1]
    named = load_texts(path, tmp_path / "cache", label_column="label", label_names=("negative", "positive"))
    assert named.labels.tolist() == [1, 0, -1]
    with pytest.raises(EbmcalError, match=r"label '0' \(1 rows, first row 1 from 0\).*known are '1', '2'"):
        load_texts(path, tmp_path / "cache", label_column="label", label_names=("1", "2"))


def cache_files(cache):
    return {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}


def test_the_cache_is_used_again_and_follows_the_contents(five, tmp_path):
    cache = tmp_path / "cache"
    first = load(five, cache)
    made = cache_files(cache)
    assert contents(load(five, cache)) == contents(first)
    assert cache_files(cache) == made
    five.write_text(five.read_text().replace("text 7,", "changed,"))
    assert load(five, cache).fingerprint != first.fingerprint
    assert len(cache_files(cache)) == 2 * len(made)


@pytest.mark.parametrize("suffix", [".arrow", ".json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete"])
def test_a_damaged_cache_is_made_again(five, tmp_path, suffix, damage):
    cache = tmp_path / "cache"
    before = contents(load(five, cache))
    (path,) = cache.glob(f"*{suffix}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 8
    broken = {"flip": bytes(content), "truncate": bytes(content[:100]), "empty": b""}
    path.unlink() if damage == "delete" else path.write_bytes(broken[damage])
    assert contents(load(five, cache)) == before


def test_any_changed_byte_of_the_counts_is_noticed(five, tmp_path):
    cache = tmp_path / "cache"
    load(five, cache)
    (path,) = cache.glob("*.json")
    whole = path.read_bytes()
    (arrow,) = cache.glob("*.arrow")
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        info = _sound_info(arrow)
        assert info is None or info == json.loads(whole)["info"]  # white space carries nothing
    path.write_bytes(whole)
    assert _sound_info(arrow) is not None


def test_an_interrupted_reading_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n' * 5000 + "broken\n")
    with pytest.raises(EbmcalError, match="line 5001"):
        load(tmp_path / "a.jsonl", tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_written_is_explained(five, tmp_path):
    with writing(tmp_path / "cache") as aside:
        aside.write_text("a file where the folder should be")
    with pytest.raises(EbmcalError, match="Could not write"):
        load(five, tmp_path / "cache")


def test_a_full_disk_is_explained_and_the_same_call_goes_on(five, tmp_path):
    code = """
import resource, signal, sys
from pathlib import Path
from ebmcal.data import DataSource, load_data
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    load_data(DataSource(train=Path(sys.argv[1])), Path(sys.argv[2]))
except Exception as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(load_data(DataSource(train=Path(sys.argv[1])), Path(sys.argv[2])).splits["train"]))
"""
    command = [sys.executable, "-c", code, str(five), str(tmp_path / "cache")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("EbmcalError Could not write")
    assert said.endswith("400\n")


def test_two_processes_may_make_the_same_cache(five, tmp_path):
    code = "import sys; from ebmcal.data import *; d = load_data(DataSource(train=sys.argv[1]), sys.argv[2])"
    command = [sys.executable, "-c", code + "; print(d.fingerprint)", str(five), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate()[0].strip() for process in both}
    assert said == {load(five, tmp_path / "cache").fingerprint}
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".arrow", ".json", ".lock"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "data_memory.py"
    command = [sys.executable, str(script), "--rows", "20000", "300000", "--json", str(tmp_path / "figures.json")]
    subprocess.run(command, check=True, capture_output=True)
    small, large = json.loads((tmp_path / "figures.json").read_text())
    grown = large["first"]["private_peak_mb"] - small["first"]["private_peak_mb"]
    assert grown < (large["file_mb"] - small["file_mb"]) * 1.5  # numbers of a row only; texts in lists would be 5 times
    assert grown < 45


@pytest.mark.parametrize(
    ("columns", "own", "taken"),
    [
        (("text", "x"), None, "text"),
        (("only",), None, "only"),
        (("id", "review"), "review", "review"),
        (("question", "sentence"), None, "sentence"),
    ],
)
def test_texts_from_elsewhere_find_their_column(columns, own, taken, tmp_path):
    path = write_csv(tmp_path / "other.csv", [[f"in {name}" for name in columns]], columns)
    assert load_other_texts(path, tmp_path / "cache", own).texts() == [(f"in {taken}", None)]


def test_texts_from_elsewhere_with_several_columns_and_none_known(tmp_path):
    path = write_csv(tmp_path / "other.csv", [["a", "b"]], ("id", "words"))
    with pytest.raises(EbmcalError, match="Unknown column 'text'"):
        load_other_texts(path, tmp_path / "cache", "review")
