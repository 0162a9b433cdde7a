"""The data audit: everything irregular is counted, and each message says what was found and what was done."""

import json

import pytest

from ebmcal import EbmcalError
from ebmcal.data import DataConfig, as_dataset, audit_messages, load_task, row_places
from small_runs import write_csv

pytest.importorskip("datasets")


def messages(rows, tmp_path, **options):
    path = write_csv(tmp_path / "texts.csv", rows)
    task = load_task(DataConfig(train=path, calibration_share=0.1, **options), tmp_path / "cache")
    return audit_messages(task.audit)


@pytest.fixture
def irregular(tmp_path):
    rows = [(f"text {i}", ("sport", "news")[i % 2]) for i in range(100)]
    rows[3] = ("", "news")
    rows[5] = ("text 5", "")
    rows[8] = ("text 6", "sport")
    rows[10] = ("text 7", "sport")  # text 7 has the label news
    path = write_csv(tmp_path / "train.csv", rows)
    path.write_bytes(path.read_bytes() + b"too,many,fields\ncaf\xe9,news\n")
    test = write_csv(tmp_path / "test.csv", [("text 1", "news"), ("unseen", "sport"), ("gone", "")])
    return load_task(DataConfig(train=path, test=test, calibration=test), tmp_path / "cache").audit


def test_nothing_is_dropped_silently(irregular):
    train, split = irregular["files"]["train"], irregular["splits"]["train"]
    assert (train["rows"], train["labelled_rows"], split["rows"]) == (101, 99, 99)
    assert train["missing_labels"] == {"count": 1, "first": [7]}
    places = {"too many fields": {"count": 1, "first": [102]}, "an empty text": {"count": 1, "first": [5]}}
    assert train["left_out"] == places
    assert train["cleaned"] == {"characters that are not UTF-8": {"count": 1, "first": [103]}}
    assert irregular["files"]["test"]["missing_labels"] == {"count": 1, "first": [4]}
    assert split["empty_texts"]["count"] == 0
    assert split["duplicates"] == {"count": 2, "first": [10, 12]}
    assert split["conflicting_duplicates"] == {"count": 1, "first": [12]}
    assert irregular["splits"]["test"]["shared"]["train"] == {"count": 1, "first": [2]}
    assert sum(split["label_counts"].values()) == 99
    json.dumps(irregular, allow_nan=False)


def test_messages_say_what_was_found_and_done(irregular):
    shown = audit_messages(irregular)
    for expected in (
        "train: 1 row with too many fields: left out (line 102 of train.csv)",
        "train: 1 row with no label: left out (line 7 of train.csv)",
        "train: 1 row with an empty text: left out (line 5 of train.csv)",
        "train: 2 rows with the text of an earlier row: kept, copies stay in one split (lines 10, 12 of train.csv)",
        "train: 1 row with the text of an earlier row but another label: kept; check the labels (line 12 of train.csv)",
        "test: 1 row with a text that is also in train: kept, so results on test may be too good (line 2 of test.csv)",
        "test: only 2 rows: an accuracy measured on so few is uncertain by up to ±69 points",
    ):
        assert f"{expected}." in shown
    (encoding,) = [message for message in shown if "not UTF-8" in message]
    assert "1 row with characters that are not UTF-8: replaced" in encoding
    assert "--encoding latin-1" in encoding
    assert "(line 103 of train.csv)" in encoding


def test_row_places_are_lines_if_each_row_is_one_and_own_ids_stay(tmp_path):
    rows = [(f"text {i}", "news" if i % 2 else "sport") for i in range(40)]
    path = write_csv(tmp_path / "a.csv", rows)
    task = load_task(DataConfig(train=path), tmp_path / "cache")
    assert row_places(["0", "3"], task.audit) == ["line 2", "line 5"]
    rows[1] = ("two\nlines", "news")
    task = load_task(DataConfig(train=write_csv(tmp_path / "b.csv", rows)), tmp_path / "cache")
    assert row_places(["0", "3"], task.audit) == ["row 0", "row 3"]
    task = load_task(DataConfig(train=path, id_column="text"), tmp_path / "cache")
    assert row_places(["text 3"], task.audit) == ["text 3"]
    assert row_places(["7"], {}) == ["7"]


def test_regular_data_has_no_messages(tmp_path):
    rows = [(f"t{i}", ["count", "rows"][i % 2]) for i in range(2000)]
    assert messages(rows, tmp_path) == []


def test_a_detected_separator_is_reported(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text;label\n" + "".join(f"text {i};{'ab'[i % 2]}\n" for i in range(60)))
    shown = audit_messages(load_task(DataConfig(train=path), tmp_path / "cache").audit)
    assert "train: columns separated by ';': detected from the header." in shown


def test_rows_without_lines_count_from_0_and_are_not_ids(tmp_path):
    rows = {"key": [f"k{i + 7}" for i in range(60)], "text": [f"text {i % 59}" for i in range(60)]}
    rows["label"] = ["ab"[i % 59 % 2] for i in range(60)]
    data = DataConfig(train=rows, test=rows, id_column="key")
    shown = audit_messages(load_task(data, tmp_path / "cache").audit)
    copy = "train: 1 row with the text of an earlier row: kept, copies stay in one split"
    assert f"{copy} (row 59 of the dict, counting from 0)." in shown


def test_repeated_ids_are_reported(tmp_path):
    rows = [(f"text {i}", "ab"[i % 2], f"k{max(i, 2)}") for i in range(60)]
    path = write_csv(tmp_path / "texts.csv", rows, ("text", "label", "key"))
    shown = audit_messages(load_task(DataConfig(train=path, id_column="key"), tmp_path / "cache").audit)
    assert (
        "train: 2 rows with the id of an earlier row: kept, but rows cannot be matched by id (lines 3, 4 of texts.csv)."
        in shown
    )


def test_labels_with_several_spellings_or_no_meaning(tmp_path):
    labels = ["pos", "neg"] * 40 + ["Pos", "NaN", "neg "] * 8
    shown = "\n".join(messages([(f"text {i}", label) for i, label in enumerate(labels)], tmp_path))
    assert "'Pos' (6 rows) may be the same label as 'pos' (32 rows): kept as separate classes." in shown
    assert "'NaN' (6 rows) is kept as a class. If it means no label, leave the field empty." in shown
    assert "train: 8 rows with spaces around the label: removed" in shown


def test_likely_misspelt_and_rare_labels(tmp_path):
    labels = ["complaint"] * 80 + ["praise"] * 80 + ["complant", "question"]
    shown = messages([(f"text {i}", label) for i, label in enumerate(labels)], tmp_path)
    assert [message for message in shown if "may be" in message] == [
        "labels: 'complant' (1 row) may be the same label as 'complaint' (64 rows): kept as separate classes. "
        "If they are the same, correct 'complant' (line 162 of texts.csv) or merge them: "
        "--merge-labels complant=complaint"
    ]
    (rare,) = [message for message in shown if "fewer than 5" in message]
    assert "2 labels with fewer than 5 training rows: 'complant' (1 row), 'question' (1 row): kept as classes" in rare


def test_labels_can_be_merged(tmp_path):
    labels = ["complaint"] * 80 + ["praise"] * 80 + ["complant", "question"]
    rows = [(f"text {i}", label) for i, label in enumerate(labels)]
    shown = messages(rows, tmp_path, merge_labels={"complant": "complaint", "question": "praise"})
    assert "train: 1 row with the label 'complant': relabelled 'complaint' (line 162 of texts.csv)." in shown
    assert not [message for message in shown if message.startswith("labels:")]
    for data in (tmp_path / "texts.csv", as_dataset(tmp_path / "texts.csv", label_column="label")):
        task = load_task(DataConfig(train=data, merge_labels={"complant": "complaint"}), tmp_path / "cache")
        assert task.label_names == ("complaint", "praise", "question")
    for wrong, message in (
        ({"complnt": "complaint"}, "Unknown label 'complnt'. Did you mean 'complant'"),
        ({"complant": "complain"}, "Unknown label 'complain'. Did you mean 'complaint'"),
        ({"complant": "question", "question": "praise"}, "'question' is itself merged"),
    ):
        with pytest.raises(EbmcalError, match=message):
            messages(rows, tmp_path, merge_labels=wrong)


@pytest.mark.parametrize("names", [("type 1", "type 2"), ("positive", "negative"), ("1", "2"), ("-1", "1"), ("a", "b")])
def test_distinct_labels_are_not_called_misspelt(names, tmp_path):
    rows = [(f"text {i}", names[i % 25 == 0]) for i in range(400)]
    assert not [message for message in messages(rows, tmp_path) if message.startswith("labels")]


def test_absent_labels(tmp_path):
    rows = [(f"text {i}", "abc"[0 if i < 80 else 1 + i % 2]) for i in range(84)]
    shown = messages(rows, tmp_path)
    assert any(message.startswith("test: no rows with label") for message in shown)
