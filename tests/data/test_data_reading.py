"""Readers on files with every oddity: what is kept, what is cleaned, what is set aside and where."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data.parts import PartFiles, format_of
from ebmcal.data.values import Columns, Tally
from ebmcal.errors import EbmcalError

LABELLED = Columns("text", None, "label")


def read(path, columns=LABELLED, format=None, header=None):
    part = PartFiles((path,), format or format_of(path), columns, header)
    part.check()
    tally = Tally(part.unit)
    rows = list(part.rows(tally))
    return rows, tally.as_dict()


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts_of(rows):
    return [row.text for row in rows]


def test_csv_with_quotes_commas_and_line_breaks_in_fields(tmp_path):
    path = write(tmp_path, "a.csv", 'id,text,label\n1,"one, two",x\n2,"say ""hi""",y\n3,"two\nlines",x\n')
    rows, notes = read(path)
    assert texts_of(rows) == ["one, two", 'say "hi"', "two\nlines"]
    assert [row.number for row in rows] == [0, 1, 2]
    assert notes["met"] == {"rows over several lines": {"count": 1, "first_lines": [4]}}
    assert notes["set_aside"] == {}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_ending(tmp_path, end):
    rows, _ = read(write(tmp_path, "a.csv", f"text,label{end}one,x{end}two,y"))
    assert [(row.text, row.label) for row in rows] == [("one", "x"), ("two", "y")]


def test_mixed_line_endings_and_a_bom(tmp_path):
    rows, notes = read(write(tmp_path, "a.csv", b"\xef\xbb\xbftext,label\r\none,x\ntwo,y\rthree,x\n\n"))
    assert texts_of(rows) == ["one", "two", "three"]
    assert notes["met"]["blank lines"]["count"] == 1


def test_unicode_line_separators_do_not_end_a_row(tmp_path):
    text = "a\u2028b\u0085c\x0bd\x1ce"
    for name, content in [("a.csv", f"text,label\n{text},x\n"), ("a.jsonl", json.dumps({"text": text, "label": "x"}))]:
        rows, _ = read(write(tmp_path, name, content))
        assert texts_of(rows) == [text]


def test_wrong_numbers_of_fields_are_set_aside_with_their_lines(tmp_path):
    rows, notes = read(write(tmp_path, "a.csv", "text,label\none,x\ntwo\nthree,y,z\nfour,y\n"))
    assert [(row.number, row.text) for row in rows] == [(0, "one"), (3, "four")]
    assert notes["set_aside"] == {
        "too few fields": {"count": 1, "first_lines": [3]},
        "too many fields": {"count": 1, "first_lines": [4]},
    }


def test_quotes_that_do_not_match_are_set_aside_and_do_not_glue_rows_silently(tmp_path):
    rows, notes = read(write(tmp_path, "a.csv", 'text,label\n"he "said" so",x\none,y\ntwo,x\n'))
    assert texts_of(rows) == ["one", "two"]
    assert notes["set_aside"] == {"quotes that do not match": {"count": 1, "first_lines": [2]}}


def test_a_quote_never_closed_is_an_error_with_its_line(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\none,x\n"two,x\n' + "three,y\n" * 50)
    with pytest.raises(EbmcalError, match=r"line 3: a field opens with a quote that is never closed"):
        read(path)


def test_tsv_of_a_user_is_quoted_and_glue_is_not(tmp_path):
    content = 'text\tlabel\n"a\tb"\tx\nsay "hi" now\ty\n'
    assert texts_of(read(write(tmp_path, "a.tsv", content))[0]) == ["a\tb", 'say "hi" now']
    glue = write(tmp_path, "g.tsv", 'text\tlabel\n" open quote\tx\nand " more\ty\n')
    assert texts_of(read(glue, format="glue")[0]) == ['" open quote', 'and " more']


def test_files_without_a_header_get_the_given_one(tmp_path):
    path = write(tmp_path, "g.tsv", "gj04\t1\t\tA sentence.\ngj04\t0\t*\tBad one.\n")
    rows, _ = read(path, Columns("s", None, "l"), "glue", ("source", "l", "mark", "s"))
    assert [(row.number, row.text, row.label) for row in rows] == [(0, "A sentence.", "1"), (1, "Bad one.", "0")]


def test_invalid_utf8_and_nul_are_cleaned_and_counted(tmp_path):
    rows, notes = read(write(tmp_path, "a.csv", b"text,label\ncaf\xe9,x\na\0b,y\nfine \xc3\xa9,x\n"))
    assert texts_of(rows) == ["caf\ufffd", "a b", "fine é"]
    assert notes["cleaned"] == {
        "NUL characters turned to spaces": {"count": 1, "first_lines": [3]},
        "invalid UTF-8 replaced": {"count": 1, "first_lines": [2]},
    }


def test_json_escapes_that_are_no_text_are_cleaned_too(tmp_path):
    rows, notes = read(write(tmp_path, "a.jsonl", '{"text": "a\\ud800b\\u0000", "label": 1}\n'))
    assert texts_of(rows) == ["a\ufffdb "]
    assert set(notes["cleaned"]) == {"NUL characters turned to spaces", "invalid UTF-8 replaced"}


def test_texts_of_100_000_characters(tmp_path):
    long = "word " * 20_000
    files = {
        "a.csv": f"text,label\n{long},x\n",
        "a.tsv": f'text\tlabel\n"{long}"\tx\n',
        "a.jsonl": json.dumps({"text": long, "label": "x"}),
    }
    for name, content in files.items():
        assert texts_of(read(write(tmp_path, name, content))[0]) == [long]


def test_utf16_is_refused_with_the_way_to_convert(tmp_path):
    for encoding in ("utf-16", "utf-16-le"):
        with pytest.raises(EbmcalError, match="iconv"):
            read(write(tmp_path, "a.csv", "text,label\none,x\n".encode(encoding)))


def test_jsonl_types_missing_keys_and_blank_lines(tmp_path):
    values = [
        {"text": 3.5, "label": 1},
        {"text": None, "label": 1.0},
        {"label": 0},
        {"text": "no label"},
        {"text": "null label", "label": None},
        {"text": True, "label": True},
    ]
    rows, notes = read(write(tmp_path, "a.jsonl", "\n" + "\n".join(json.dumps(v) for v in values)))
    assert [(row.number, row.text, row.label) for row in rows] == [
        (0, "3.5", "1"),
        (1, "", "1"),
        (3, "no label", None),
        (4, "null label", None),
        (5, "True", "true"),
    ]
    assert notes["set_aside"] == {"too few fields": {"count": 1, "first_lines": [4]}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "line 2 is a JSON list"),
        ("not json", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"text": ["a"], "label": 1}', "a list at line 2"),
        ('{"text": "a", "label": {"b": 1}}', "an object at line 2"),
    ],
)
def test_jsonl_lines_that_cannot_be_used_name_the_line(tmp_path, line, message):
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
    assert rows == [(0, "a", "1", "1"), (1, "", "2", None), (2, "c", "3", None)]


def test_parquet_with_invalid_utf8_is_counted(tmp_path):
    bad = pa.array([b"caf\xe9", b"ok"]).view(pa.string())
    pq.write_table(pa.table({"text": bad, "label": [0, 1]}), tmp_path / "a.parquet")
    rows, notes = read(tmp_path / "a.parquet")
    assert texts_of(rows) == ["caf\ufffd", "ok"]
    assert notes["cleaned"]["invalid UTF-8 replaced"] == {"count": 1, "first_rows": [0]}


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.struct([("a", pa.string())]), pa.binary()])
def test_parquet_columns_that_are_no_text(tmp_path, kind):
    pq.write_table(pa.table({"text": pa.array([None], type=kind), "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(EbmcalError, match="column 'text' has type"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("keep", [3, 100, -9, -1])
def test_a_truncated_parquet_file(tmp_path, keep):
    pq.write_table(pa.table({"text": ["a"] * 50, "label": np.arange(50)}), tmp_path / "whole.parquet")
    path = write(tmp_path, "a.parquet", (tmp_path / "whole.parquet").read_bytes()[:keep])
    with pytest.raises(EbmcalError, match="not a whole Parquet file"):
        read(path)


def test_a_column_name_that_is_no_utf8(tmp_path):
    pq.write_table(
        pa.table({"text": ["a"], "label": [0], "other": [1]}), tmp_path / "whole.parquet", store_schema=False
    )
    path = write(tmp_path, "a.parquet", (tmp_path / "whole.parquet").read_bytes().replace(b"other", b"oth\xe5r"))
    with pytest.raises(EbmcalError, match="not a whole Parquet file"):
        read(path)


def test_rows_are_numbered_through_several_files(tmp_path):
    for i in range(3):
        pq.write_table(pa.table({"text": [f"{i}a", f"{i}b"], "label": [0, 1]}), tmp_path / f"{i}.parquet")
    part = PartFiles(tuple(tmp_path / f"{i}.parquet" for i in range(3)), "parquet", LABELLED)
    assert [row.number for row in part.rows(Tally())] == list(range(6))


def test_duplicate_columns_matter_only_when_they_are_read(tmp_path):
    assert len(read(write(tmp_path, "a.csv", "text,x,x,label\na,1,2,y\n"))[0]) == 1
    with pytest.raises(EbmcalError, match="2 columns named 'text'"):
        read(write(tmp_path, "b.csv", "text,text,label\na,b,y\n"))


def test_a_semicolon_file_of_other_columns_is_named_by_them(tmp_path):
    with pytest.raises(EbmcalError, match=r"Unknown column 'text'.*Known: review, label"):
        read(write(tmp_path, "a.csv", "review;label\na;y\n"))
