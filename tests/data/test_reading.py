"""Files as people have them: what is read, what is cleaned, what is left out, and where that was."""

import csv
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data import DataConfig, as_dataset, load_task, store_table
from ebmcal.data.files import Columns, TableSource
from ebmcal.errors import EbmcalError

LABELLED = Columns("text", None, "label")
ROWS = [("fine, really", "good"), ("dull; or not", "bad")]


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, columns=LABELLED, **options):
    """The stored columns and the tally of a file."""
    source = TableSource((str(path)), path, **options) if options else TableSource.from_path(path)
    stored = store_table(source, source.resolve(columns))
    return stored.dataset[:], stored.info


def texts_of(path, **options):
    return as_dataset(path, **options)["text"][:]


def test_csv_with_quotes_commas_and_line_breaks_in_fields(tmp_path):
    path = write(tmp_path, "a.csv", 'id,text,label\n1,"one, two",x\n2,"say ""hi""",y\n3,"two\nlines",x\n4,last,y\n')
    rows, info = read(path)
    assert rows["text"] == ["one, two", 'say "hi"', "two\nlines", "last"]
    assert rows["place"] == [2, 3, 4, 6]
    assert rows["id"] == ["0", "1", "2", "3"]
    assert info["left_out"] == info["notes"] == {}


def write_rows(path, rows):
    """A file of dictionaries; text formats with a BOM and all kinds of line ends between the rows."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    content = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
    if path.suffix in (".csv", ".tsv"):
        content = ""
        for i, row in enumerate([rows[0].keys(), *(row.values() for row in rows)]):
            line, end = io.StringIO(), ("\r\n", "\n", "\r")[i % 3]
            csv.writer(line, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator=end).writerow(row)
            content += line.getvalue()
    path.write_bytes(content.encode("utf-8-sig"))


def test_mixed_line_endings_bom_and_blank_lines(tmp_path):
    rows, info = read(write(tmp_path, "a.csv", b"\xef\xbb\xbf\n\ntext,label\r\none,x\ntwo,y\rthree,x\n\n"))
    assert rows["text"] == ["one", "two", "three"]
    assert rows["place"] == [4, 5, 6]
    assert info["notes"] == {}


def test_unicode_line_separators_do_not_end_a_row(tmp_path):
    text = "a\u2028b\u0085c\x0bd\x1ce"
    assert texts_of(write(tmp_path, "a.csv", f"text,label\n{text},x\n")) == [text]
    text = "a\u2028b\u0085c"
    for name in ("a.jsonl", "lines.json"):
        assert texts_of(write(tmp_path, name, f'{{"text": "{text}"}}\n{{"text": "d"}}\n')) == [text, "d"]


def test_rows_with_a_wrong_number_of_fields_are_left_out_with_their_lines(tmp_path):
    rows, info = read(write(tmp_path, "a.csv", 'text,label\n"one\nmore",x\ntwo\nthree,y,z\nfour,y\n'))
    assert (rows["id"], rows["text"]) == (["0", "3"], ["one\nmore", "four"])
    assert info["left_out"] == {
        "too few fields": {"count": 1, "first": [4]},
        "too many fields": {"count": 1, "first": [5]},
    }


def test_unmatched_quotes_are_left_out_and_lines_they_join_are_counted(tmp_path):
    rows, info = read(
        write(tmp_path, "a.csv", 'text,label\n"he "said" so",x\none,y\n"two,x\nthree,y\n"four",x\nend,y\n')
    )
    assert rows["text"] == ["one", "end"]
    assert info["left_out"] == {
        "unmatched quotes": {"count": 1, "first": [2]},
        "unmatched quotes that join several lines": {"count": 1, "first": [4]},
    }


def test_a_quote_that_is_never_closed_is_an_error_with_its_line(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\none,x\n"two,x\n' + "three,y\n" * 50)
    with pytest.raises(EbmcalError, match=r"a.csv: line 3: a field starts with a quote that is never closed"):
        read(path)


def test_tsv_is_quoted_and_glue_is_not(tmp_path):
    content = 'text\tlabel\n"a\tb"\tx\nsay "hi" now\ty\n'
    assert read(write(tmp_path, "a.tsv", content))[0]["text"] == ["a\tb", 'say "hi" now']
    glue = write(tmp_path, "g.tsv", 'text\tlabel\n" open quote\tx\nand " more\ty\n')
    assert read(glue, format="glue")[0]["text"] == ['" open quote', 'and " more']


def test_files_without_a_header_get_the_given_one(tmp_path):
    path = write(tmp_path, "g.tsv", "gj04\t1\t\tA sentence.\ngj04\t0\t*\tBad one.\n")
    rows, _ = read(path, Columns("s", None, "l"), format="glue", header=("source", "l", "mark", "s"))
    assert (rows["id"], rows["text"], rows["label"]) == (["0", "1"], ["A sentence.", "Bad one."], ["1", "0"])


def test_invalid_utf8_and_nul_are_cleaned_and_counted(tmp_path):
    rows, info = read(write(tmp_path, "a.csv", b"text,label\ncaf\xe9,x\na\0b,y\nfine \xc3\xa9,x\n"))
    assert rows["text"] == ["caf\ufffd", "a b", "fine é"]
    assert info["cleaned"] == {
        "NUL characters": {"count": 1, "first": [3]},
        "characters that are not UTF-8": {"count": 1, "first": [2]},
    }


def test_lone_surrogates_in_json_escapes_are_replaced(tmp_path):
    rows, info = read(write(tmp_path, "a.jsonl", '{"text": "a\\ud800b\\u0000", "label": 1}\n'))
    assert rows["text"] == ["a\ufffdb "]
    assert set(info["cleaned"]) == {"NUL characters", "characters that are not UTF-8"}


ODD = [
    "<script>alert(1)</script> <img src=x>", "long " * 20_000, "x" * 500_000, "a NUL \0 inside", "\ufeffa BOM inside",
    "two\r\nlines\rand\nmore", "\u202eright to left\u202c and \u200f marks \u200b\u2028\u2029", "e\u0301" * 50,
    "👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff \ufffe", "tab\there, \"quotes\", 'more', {{ braces }} & %s \\n",
    "=HYPERLINK(1)", " ", "", "NA", "null", "None", "nan", "N/A", "1", "1.0", "007", "true", "-inf", "#N/A",
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_odd_texts_are_neither_lost_nor_joined(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    write_rows(path, [{"text": text, "label": "good"} for text in ODD])
    stored, info = read(path)
    assert stored["text"] == [text.replace("\0", " ") for text in ODD]
    assert set(stored["label"]) == {"good"}
    assert info["left_out"] == {}
    assert list(info["cleaned"]) == ["NUL characters"]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_the_separator_is_detected(mark, tmp_path):
    content = f"text{mark}label\n" + "".join(f'"{text}"{mark}{label}\n' for text, label in ROWS)
    rows, info = read(write(tmp_path, "a.csv", content))
    assert rows["text"] == [text for text, _ in ROWS]
    assert info["notes"] == {f"columns separated by {mark!r}": {"count": 1, "first": [1]}}
    with pytest.raises(EbmcalError, match=r"Unknown column 'review'. Available: text, label"):
        read(write(tmp_path, "b.csv", content), Columns("review"))


def test_a_file_with_one_column_is_not_split(tmp_path):
    assert texts_of(write(tmp_path, "a.csv", 'text\n"fine, really"\ndull; or not\n')) == [text for text, _ in ROWS]


def test_text_lines(tmp_path):
    path = write(tmp_path, "a.txt", "first, text\n\nsecond text\r\n")
    for column in (None, "review"):
        assert texts_of(path, text_column=column) == ["first, text", "second text"]
    assert as_dataset(path)["id"][:] == ["0", "2"]
    with pytest.raises(EbmcalError, match="Unknown column 'label'"):
        texts_of(path, label_column="label")


@pytest.mark.parametrize(
    "content",
    [
        [{"text": text, "label": label} for text, label in ROWS],
        {"data": [{"text": text, "label": label} for text, label in ROWS]},
        {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]},
    ],
)
def test_layouts_of_json(content, tmp_path):
    path = write(tmp_path, "a.json", json.dumps(content, indent=1))
    dataset = as_dataset(path, label_column="label")
    assert (dataset["text"][:], dataset["label"][:]) == ([text for text, _ in ROWS], [1, 0])


def test_broken_json_is_an_error_with_its_position(tmp_path):
    with pytest.raises(EbmcalError, match=r"a\.json: not valid JSON \(Expecting .*line 3 column 2"):
        texts_of(write(tmp_path, "a.json", '[\n{"text": "a"}\n {"text": "b"}\n]'))
    with pytest.raises(EbmcalError, match=r"lines\.json: row 1: not valid JSON"):
        texts_of(write(tmp_path, "lines.json", '{"text": "a"}\n{"text": \n'))


@pytest.mark.parametrize("content", ['"text"', "[1, 2]", '{"text": "one"}', '{"text": ["a"], "label": []}'])
def test_json_that_is_no_table(content, tmp_path):
    with pytest.raises(EbmcalError, match="expected a list of JSON objects"):
        texts_of(write(tmp_path, "a.json", content))


def test_jsonl_types_missing_keys_and_blank_lines(tmp_path):
    values = [
        {"text": 3.5, "label": 1},
        {"text": None, "label": 1.0},
        {"label": 0},
        {"text": "no label"},
        {"text": "null label", "label": None},
        {"text": True, "label": True},
    ]
    rows, info = read(write(tmp_path, "a.jsonl", "\n" + "\n".join(json.dumps(v) for v in values)))
    assert rows["id"] == ["0", "1", "3", "4", "5"]
    assert rows["text"] == ["3.5", "", "no label", "null label", "True"]
    assert rows["label"] == ["1", "1", None, None, "true"]
    assert info["left_out"] == {"too few fields": {"count": 1, "first": [4]}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "a.jsonl: line 2: a JSON list; expected an object"),
        ("not json", "line 2: not valid JSON"),
        ("[" * 100_000, "line 2: not valid JSON"),
        ('{"text": ["a"], "label": 1}', "Column 'text' has a list at line 2"),
        ('{"text": "a", "label": {"b": 1}}', "Column 'label' has an object at line 2"),
    ],
)
def test_jsonl_lines_that_cannot_be_used_are_named(line, message, tmp_path):
    with pytest.raises(EbmcalError, match=message):
        read(write(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n' + line + "\n"))


def test_parquet_types(tmp_path):
    table = pa.table(
        {
            "text": pa.array(["a", None, "c"]).dictionary_encode(),
            "pair": pa.array([1, 2, 3]),
            "label": pa.array([1.0, float("nan"), None]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rows, _ = read(tmp_path / "a.parquet", Columns("text", "pair", "label"))
    assert (rows["text"], rows["text_pair"], rows["label"]) == (["a", "", "c"], ["1", "2", "3"], ["1", None, None])


@pytest.mark.parametrize("value", [["a"], {"a": "b"}, b"a"])
def test_parquet_columns_that_are_no_text(value, tmp_path):
    pq.write_table(pa.table({"text": [value], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(EbmcalError, match=r"a.parquet: Column 'text' has (a list|an object|binary data) at row 0"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("keep", [3, 100, -9, -1])
def test_a_truncated_parquet_file(keep, tmp_path):
    pq.write_table(pa.table({"text": ["a"] * 50, "label": np.arange(50)}), tmp_path / "whole.parquet")
    path = write(tmp_path, "a.parquet", (tmp_path / "whole.parquet").read_bytes()[:keep])
    with pytest.raises(EbmcalError, match="not a complete Parquet file"):
        read(path)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.txt.gz"])
def test_compressed_files(name, tmp_path):
    content = {"a.csv.gz": "text\none\ntwo\n", "a.jsonl.gz": '{"text": "one"}\n{"text": "two"}\n'}.get(
        name, "one\ntwo\n"
    )
    packed = gzip.compress(content.encode())
    assert texts_of(write(tmp_path, name, packed)) == ["one", "two"]
    for broken in (packed[:-9], b"text\none\n", packed[:12] + b"\0\0\0\0" + packed[16:]):
        with pytest.raises(EbmcalError):
            texts_of(write(tmp_path, name, broken))


def test_repeated_columns_matter_only_if_they_are_read(tmp_path):
    assert texts_of(write(tmp_path, "a.csv", "text,x,x,label\na,1,2,y\n")) == ["a"]
    with pytest.raises(EbmcalError, match="2 columns are named 'text'"):
        texts_of(write(tmp_path, "b.csv", "text,text,label\na,b,y\n"))


def test_encodings(tmp_path):
    path = write(tmp_path, "a.csv", "text\nschön\nöde\nglatt\n".encode("latin-1"))
    with pytest.raises(EbmcalError, match=r"2 of 3 rows are not UTF-8 \(first lines: 2, 3\).*--encoding cp1252"):
        texts_of(path)
    with pytest.raises(EbmcalError, match=r"2 of 100 rows are not UTF-8"):
        texts_of(write(tmp_path, "b.csv", ("text\nschön\nöde\n" + "glatt\n" * 98).encode("cp1252")))
    assert texts_of(path, encoding="latin-1") == ["schön", "öde", "glatt"]
    assert texts_of(path, encoding="utf-8") == ["sch\ufffdn", "\ufffdde", "glatt"]
    with pytest.raises(EbmcalError, match="Unknown encoding 'latin-99'"):
        texts_of(path, encoding="latin-99")


def test_labels_and_column_names_are_never_guessed(tmp_path):
    rows = "text,label\n" + "parcel,return\n" * 500
    label = write(tmp_path, "a.csv", f"{rows}parcel,Rückgabe\n".encode("cp1252"))
    with pytest.raises(EbmcalError, match=r"labels of 1 of 501 rows are not UTF-8 \(first lines: 502\).*cp1252"):
        as_dataset(label, label_column="label")
    assert as_dataset(label, label_column="label", encoding="cp1252").features["label"].names[0] == "Rückgabe"
    data = DataConfig(train=label, merge_labels={"Rückgabe": "return"})
    with pytest.raises(EbmcalError, match="train data .*labels of 1 of 501 rows are not UTF-8"):
        load_task(data, tmp_path / "cache")
    name = write(tmp_path, "b.csv", rows.replace("label", "Größe").encode("cp1252"))
    with pytest.raises(EbmcalError, match="The column name 'Gr\ufffd\ufffde' is not UTF-8. .*--encoding cp1252"):
        as_dataset(name)


def test_utf16(tmp_path):
    for encoding in ("utf-16", "utf-16-le"):
        with pytest.raises(EbmcalError, match=r"--encoding utf-16.*iconv"):
            texts_of(write(tmp_path, "a.csv", "text,label\none,x\n".encode(encoding)))
    assert texts_of(write(tmp_path, "a.csv", "text\nschön\n".encode("utf-16")), encoding="utf-16") == ["schön"]
    with pytest.raises(EbmcalError, match=r"a.csv: line 1 or a later one cannot be decoded as utf-16"):
        texts_of(write(tmp_path, "a.csv", "text\nabc\n"), encoding="utf-16")


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        (("text", "x"), "text"),
        (("only",), "only"),
        (("question", "sentence"), "sentence"),
        (("sentence", "text"), "text"),
    ],
)
def test_the_text_column_is_found(columns, taken, tmp_path):
    path = write(tmp_path, "a.csv", ",".join(columns) + "\n" + ",".join(f"in {name}" for name in columns) + "\n")
    assert texts_of(path) == [f"in {taken}"]
