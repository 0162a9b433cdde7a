"""Files as people have them: other separators, plain lines, JSON, fields inside fields, other encodings, a pipe."""

import io
import json
from types import SimpleNamespace

import pytest

from ebmcal.data import DataSource, audit_sentences, label_sentence, load_data, load_other_texts, load_texts
from ebmcal.data.in_memory import as_table_file
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError

ROWS = [("fine, really", "good"), ("dull; or not", "bad")]


def read(path, tmp_path, **options):
    return [text for text, _ in load_texts(path, tmp_path / "cache", **options).texts()]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_csv_with_another_separator(mark, tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text(f"text{mark}label\n" + "".join(f'"{text}"{mark}{label}\n' for text, label in ROWS))
    assert read(path, tmp_path, label_column="label") == [text for text, _ in ROWS]
    assert len(load_other_texts(path, tmp_path / "cache")) == 2


def test_another_separator_is_said(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text;label\n" + "".join(f"text {i};{'ab'[i % 2]}\n" for i in range(60)))
    lines = audit_sentences(load_data(DataSource(train=path), tmp_path / "cache").audit)
    assert "train: 1 header line with columns separated by ';' (first lines 1)" in lines


def test_a_text_a_line(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("first, text\n\nsecond text\r\n")
    assert read(path, tmp_path) == ["first, text", "second text"]
    assert read(path, tmp_path, text_column="review") == ["first, text", "second text"]
    with pytest.raises(EbmcalError, match="Unknown column 'label'"):
        read(path, tmp_path, label_column="label")


@pytest.mark.parametrize(
    "content",
    [
        [{"text": text, "label": label} for text, label in ROWS],
        {"data": [{"text": text, "label": label} for text, label in ROWS]},
        {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]},
    ],
)
def test_json(content, tmp_path):
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(content, indent=1))
    assert read(path, tmp_path, label_column="label") == [text for text, _ in ROWS]


def test_json_lines_in_a_file_called_json(tmp_path):
    path = tmp_path / "texts.json"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in ROWS))
    assert read(path, tmp_path) == [text for text, _ in ROWS]


@pytest.mark.parametrize("content", ['"text"', "[1, 2]", '{"text": "one"}', '{"text": ["a"], "label": []}'])
def test_json_that_is_no_table(content, tmp_path):
    path = tmp_path / "texts.json"
    path.write_text(content)
    with pytest.raises(EbmcalError, match="no list of JSON objects"):
        read(path, tmp_path)


def test_fields_inside_fields(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [{"id": i, "meta": {"label": label}, "turns": [{"text": text}]} for i, (text, label) in enumerate(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"turns": []}]))
    found = load_texts(path, tmp_path / "cache", "turns.0.text", None, "meta.label")
    assert [text for text, _ in found.texts()] == [text for text, _ in ROWS]
    assert found.labels.tolist() == [1, 0]
    with pytest.raises(EbmcalError, match=r"Unknown column 'meta.lable'. Did you mean 'meta.label'"):
        load_texts(path, tmp_path / "cache", "turns.0.text", None, "meta.lable")


def test_the_encoding_that_is_named(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_bytes("text\nschön\nöde\nglatt\n".encode("latin-1"))
    with pytest.raises(EbmcalError, match=r"2 of the 3 rows .* are not UTF-8.*--encoding latin-1"):
        read(path, tmp_path)
    assert read(path, tmp_path, encoding="latin-1") == ["schön", "öde", "glatt"]
    assert read(path, tmp_path, encoding="utf-8") == ["sch\ufffdn", "\ufffdde", "glatt"]
    path.write_bytes("text\nschön\n".encode("utf-16"))
    with pytest.raises(EbmcalError, match="--encoding utf-16"):
        read(path, tmp_path)
    assert read(path, tmp_path, encoding="utf-16") == ["schön"]
    path.write_bytes(b"text\nabc\n")
    with pytest.raises(EbmcalError, match="not of the encoding utf-16"):
        read(path, tmp_path, encoding="utf-16")


def test_a_few_lost_characters_are_said_with_what_to_do(tmp_path):
    path = tmp_path / "texts.csv"
    rows = [f"text {i},{'ab'[i % 2]}".encode() for i in range(60)]
    path.write_bytes(b"text,label\n" + b"\n".join([*rows, b"sch\xf6n,a"]))
    lines = audit_sentences(load_data(DataSource(train=path), tmp_path / "cache").audit)
    assert any("1 invalid UTF-8 replaced (its encoding may be another: --encoding latin-1" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (b'[{"text": "fine, really"}, {"text": "dull; or not"}]', ".json"),
        (b'{"text": "fine, really"}\n{"text": "dull; or not"}\n', ".json"),
        (b'text,label\n"fine, really",good\ndull; or not,bad\n', ".csv"),
        (b"fine, really\ndull; or not\n", ".txt"),
        (b"[fine], really\ndull; or not\n", ".txt"),
    ],
)
def test_what_is_piped_in(content, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    path, columns = as_table_file("-", tmp_path, Columns("text"))
    assert path.suffix == suffix
    assert read(path, tmp_path, text_column=columns.text)[1] == "dull; or not"
    with pytest.raises(EbmcalError, match="Nothing was piped in"):
        as_table_file("-", tmp_path, Columns("text"))


def test_one_column_for_two_things(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\na,b\n")
    with pytest.raises(EbmcalError, match="'text' was given as the text and as the label"):
        load_data(DataSource(train=path, label_column="text"), tmp_path / "cache")


def test_equal_texts_are_named_as_the_reason(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n" + "".join(f"the same,{'ab'[i % 2]}\n" for i in range(300)))
    with pytest.raises(EbmcalError, match=r"have 1 different texts, too few to cut one off \(equal texts stay"):
        load_data(DataSource(train=path), tmp_path / "cache")


def test_labels_that_may_be_one_or_none_are_said(tmp_path):
    path = tmp_path / "texts.csv"
    labels = ["pos", "neg"] * 40 + ["Pos", "NaN", "neg "] * 4
    path.write_text("text,label\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(labels)))
    data = load_data(DataSource(train=path), tmp_path / "cache")
    lines = "\n".join(audit_sentences(data.audit))
    assert data.label_names == ("NaN", "Pos", "neg", "pos")
    assert "'Pos' (" in lines
    assert "are two classes; if they are one, spell them alike" in lines
    assert "'NaN' (" in lines
    assert "is a class like the others" in lines
    assert "train: 4 labels with spaces around them, which were taken off" in lines


def test_small_splits_and_absent_labels_are_said(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n" + "".join(f"text {i},{'abc'[0 if i < 80 else 1 + i % 2]}\n" for i in range(84)))
    lines = audit_sentences(load_data(DataSource(train=path), tmp_path / "cache").audit)
    assert "test: 8 rows only: an accuracy over them is uncertain by up to ±35 points" in lines
    assert any(line.startswith("test: no row of") for line in lines)


def test_labels_with_their_counts():
    assert label_sentence({f"l{i}": i for i in range(1, 21)}) == (
        "l20 20, l19 19, l18 18, l17 17, l16 16, l15 15, … (20 labels), l3 3, l2 2, l1 1"
    )
