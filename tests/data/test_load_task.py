"""`load_task` on a user's own files: splits, labels, limits, fingerprints, the cache."""

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

from ebmcal.data import DataConfig, dataset_fingerprint, load_task
from ebmcal.errors import EbmcalError
from small_runs import write_csv

pytest.importorskip("datasets")

NAMES = ["sport", "news", "film", "food", "trade"]


@pytest.fixture
def five(tmp_path):
    return write_csv(tmp_path / "topics.csv", [(f"text {i}", NAMES[i % 5]) for i in range(500)])


def load(train, cache, **options):
    return load_task(DataConfig(train=train, **({"calibration_share": 0.1} | options)), cache)


def sizes(task):
    return {name: len(split) for name, split in task.splits.items()}


def contents(task):
    return {name: split[:] for name, split in task.splits.items()}


def test_one_file_becomes_three_stratified_splits(five, tmp_path):
    task = load(five, tmp_path / "cache")
    assert sizes(task) == {"train": 400, "calibration": 50, "test": 50}
    assert (task.label_names, task.name, task.metric, task.is_pair) == (
        tuple(sorted(NAMES)),
        "topics",
        "accuracy",
        False,
    )
    for split in task.splits.values():
        assert split.column_names == ["id", "text", "label"]
        assert split.features["label"].names == list(task.label_names)
        assert len(set(np.bincount(split["label"]))) == 1
        for row in split:
            assert row["text"] == f"text {row['id']}"
            assert task.label_names[row["label"]] == NAMES[int(row["id"]) % 5]


# Known values: results stay comparable only if the same file and seed give the same splits.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["e529c1655beaeecf", "2a622bde2dee0ad3", "050a20eaf86c77f7"]),
        (
            {"split_seed": 4, "max_train_rows": 50, "max_eval_rows": 9},
            ["1d7ef784f5261963", "c8f4a6c3098ffa20", "98d55e1aa1ce317e"],
        ),
    ],
)
def test_splits_never_change(options, expected, tmp_path):
    rows = [(f"text {i % 180}", "abc"[i % 180 % 7 % 3]) for i in range(200)]
    task = load(write_csv(tmp_path / "a.csv", rows), tmp_path / "cache", **options)
    assert list(task.fingerprints.values()) == expected
    assert [dataset_fingerprint(split) for split in task.splits.values()] == expected


def test_splits_of_pairs_never_change(tmp_path):
    rows = [(f"first {i}", f"second {i % 9}", i % 2) for i in range(100)]
    path = write_csv(tmp_path / "a.csv", rows, ("one", "two", "label"))
    task = load(path, tmp_path / "cache", text_column="one", text_pair_column="two")
    assert list(task.fingerprints.values()) == ["d4ce1b882c2793f2", "6dd51fe4f3ae47f3", "0d16a039c81ff364"]
    assert task.is_pair
    assert task.splits["test"][0] == {"id": "1", "text": "first 1", "text_pair": "second 1", "label": 1}


def test_without_a_calibration_share_the_rows_stay_in_train_and_the_test_split_is_the_same(five, tmp_path):
    task, other = load(five, tmp_path / "cache", calibration_share=None), load(five, tmp_path / "cache")
    assert sizes(task) == {"train": 450, "test": 50}
    assert task.fingerprints["test"] == other.fingerprints["test"]
    assert sorted(task.splits["train"]["id"]) == sorted(
        [*other.splits["train"]["id"], *other.splits["calibration"]["id"]]
    )
    assert sizes(load(five, tmp_path / "cache", calibration_share=0.3)) == {
        "train": 300,
        "calibration": 150,
        "test": 50,
    }


def test_given_splits_are_used_as_they_are(five, tmp_path):
    test = write_csv(tmp_path / "test.csv", [("new a", "film"), ("new b", "news")])
    task = load(five, tmp_path / "cache", test=test)
    assert sizes(task) == {"train": 450, "calibration": 50, "test": 2}
    assert task.splits["test"]["text"][:] == ["new a", "new b"]
    both = load(five, tmp_path / "cache", test=test, calibration=test, calibration_share=None)
    assert sizes(both) == {"train": 500, "calibration": 2, "test": 2}
    assert both.audit["splits"]["test"]["shared"]["calibration"]["count"] == 2


def test_the_same_rows_in_any_format_give_the_same_data(tmp_path):
    rows = [(f'He said "{i}", and\tleft', NAMES[i % 3]) for i in range(60)]
    write_csv(tmp_path / "a.csv", rows)
    with open(tmp_path / "b.tsv", "w", newline="") as handle:
        csv.writer(handle, delimiter="\t").writerows([("text", "label"), *rows])
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"label": label, "text": text}) for text, label in rows))
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=7)
    tasks = [load(tmp_path / n, tmp_path / "cache") for n in ("a.csv", "b.tsv", "c.jsonl", "d.parquet")]
    tasks.append(load(table, tmp_path / "cache"))
    assert all(task.fingerprints == tasks[0].fingerprints for task in tasks)
    assert all(contents(task) == contents(tasks[0]) for task in tasks)


def test_row_limits_are_stratified_and_seeded(five, tmp_path):
    def ids(**options):
        task = load(five, tmp_path / "cache", max_train_rows=50, max_eval_rows=7, **options)
        assert sizes(task) == {"train": 50, "calibration": 7, "test": 7}
        assert set(np.bincount(task.splits["train"]["label"])) == {10}
        return task.splits["train"]["id"][:]

    assert ids() == ids() == sorted(ids(), key=int)
    assert ids() != ids(split_seed=1)


def test_fingerprints_follow_texts_labels_and_order_but_not_ids_or_paths(tmp_path):
    def fingerprint(rows, name="x.csv", **options):
        test = write_csv(tmp_path / name, rows, ("text", "label", "key"))
        task = load(
            write_csv(tmp_path / "t.csv", base, ("text", "label", "key")), tmp_path / "cache", test=test, **options
        )
        return task.fingerprints["test"]

    base = [(f"t{i}", i % 2, f"k{i}") for i in range(40)]
    first = fingerprint([("a", 0, 1), ("b", 1, 2)])
    assert first == fingerprint([("a", 0, 7), ("b", 1, 8)], "y.csv", id_column="key")
    others = [[("a", 1, 1), ("b", 0, 2)], [("b", 1, 1), ("a", 0, 2)], [("a ", 0, 1), ("b", 1, 2)], [("a", 0, 1)]]
    assert len({first, *map(fingerprint, others)}) == 5


def cached_files(cache):
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}


def test_the_cache_is_reused_and_follows_the_content(five, tmp_path):
    cache = tmp_path / "cache"
    first = load(five, cache)
    assert first.splits["train"].cache_files[0]["filename"].startswith(str(cache))
    made = cached_files(cache)
    assert contents(load(five, cache)) == contents(first)
    assert cached_files(cache) == made
    five.write_text(five.read_text().replace("text 7,", "changed,"))
    assert load(five, cache).fingerprints != first.fingerprints
    assert len(cached_files(cache)) == 2 * len(made)


@pytest.mark.parametrize("name", ["data.arrow", "info.json"])
@pytest.mark.parametrize("damage", ["truncate", "empty", "delete", "garbage", "another text"])
def test_a_corrupt_cache_is_made_again(five, name, damage, tmp_path):
    cache = tmp_path / "cache"
    before = contents(load(five, cache))
    (path,) = cache.rglob(name)
    content = path.read_bytes()
    path.unlink()  # a new file: the old one may be mapped by this process
    if damage != "delete":
        broken = {"truncate": content[:100], "empty": b"", "garbage": b"{}" + b"x" * (len(content) - 2)}
        broken["another text"] = content.replace(b"text 7", b"text \xdb")  # and not UTF-8
        path.write_bytes(broken[damage])
    assert contents(load(five, cache)) == before


def test_a_file_that_cannot_be_read_leaves_nothing_in_the_cache(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n' * 5000 + "broken\n")
    with pytest.raises(EbmcalError, match=r"a\.jsonl: line 5001: not valid JSON"):
        load(tmp_path / "a.jsonl", tmp_path / "cache")
    assert [path.name for path in cached_files(tmp_path / "cache")] == [".lock"]


def test_a_cache_that_cannot_be_written_is_explained(five, tmp_path):
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(EbmcalError, match="Could not write"):
        load(five, tmp_path / "cache")


def test_splits_can_be_pickled(five, tmp_path):
    """As data loaders with workers and Ray do."""
    train = load(five, tmp_path / "cache").splits["train"]
    again = pickle.loads(pickle.dumps(train))
    assert again[3:6] == train[3:6]
    assert dataset_fingerprint(again.select(range(10))) == dataset_fingerprint(train.select(range(10)))


def test_a_full_disk_is_explained_and_the_same_call_then_works(five, tmp_path):
    code = """
import resource, signal, sys
from pathlib import Path
from ebmcal.data import DataConfig, load_task
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    load_task(DataConfig(train=sys.argv[1]), Path(sys.argv[2]))
except Exception as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(len(load_task(DataConfig(train=sys.argv[1]), Path(sys.argv[2])).splits["train"]))
"""
    command = [sys.executable, "-c", code, str(five), str(tmp_path / "cache")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("EbmcalError Could not write")
    assert printed.endswith("450\n")


def test_two_processes_can_fill_the_same_cache(five, tmp_path):
    code = "import sys; from ebmcal.data import *; t = load_task(DataConfig(train=sys.argv[1]), sys.argv[2])"
    command = [sys.executable, "-c", code + "; print(t.fingerprints)", str(five), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate()[0].strip() for process in both}
    assert printed == {str(load(five, tmp_path / "cache", calibration_share=None).fingerprints)}
    assert sorted(path.name for path in cached_files(tmp_path / "cache")) == [".lock", "data.arrow", "info.json"]


def test_long_texts_over_many_batches(tmp_path):
    rows = [(f"text {i}", i % 2) for i in range(10_000)] + [("long " * 20_000, 1)] * 60
    test = write_csv(tmp_path / "test.csv", rows)
    task = load(write_csv(tmp_path / "a.csv", rows[:100]), tmp_path / "cache", test=test)
    split = task.splits["test"]
    assert split.data.column("text").num_chunks > 3
    assert split.select([10_050, 1, 4096])["text"][:] == [rows[i][0] for i in (10_050, 1, 4096)]
    assert [text for batch in split.iter(1000) for text in batch["text"]] == [text for text, _ in rows]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "data_memory.py"
    command = [sys.executable, str(script), "--rows", "20000", "300000", "--json", str(tmp_path / "results.json")]
    subprocess.run(command, check=True, capture_output=True)
    small, large = json.loads((tmp_path / "results.json").read_text())
    grown = large["first"]["private_peak_mb"] - small["first"]["private_peak_mb"]
    assert grown < (large["file_mb"] - small["file_mb"]) * 1.5
