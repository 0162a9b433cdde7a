"""`predict_file`: every format in and out, in order, with the user's columns; bad rows keep their place."""

import csv
import io
import json
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import pyarrow as pa
import pyarrow.parquet as pq
from prediction_helpers import N_ROWS, NAMES, TEXTS, read, working_directories

from ebmcal import EbmcalError, Predictions, predict_file

SUFFIXES = [".csv", ".jsonl", ".parquet"]
TABLES = ("new.csv", "new.tsv", "semicolons.csv", "new.jsonl", "bom.jsonl", "new.json", "new.parquet")
INPUTS = [*TABLES, "new.csv.gz", "new.txt"]


def feed(monkeypatch, content):
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BytesIO(content)}))


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_gives_the_numbers_of_predict(name, table, model):
    done = predict_file(model, table / name, table / "out.jsonl")
    rows, expected = read(table / "out.jsonl"), model.predict(TEXTS)
    assert [row["text"] for row in rows] == TEXTS
    assert [row["predicted"] for row in rows] == expected.predicted_labels.tolist()
    for c, label in enumerate(NAMES):
        np.testing.assert_allclose([row[f"prob_{label}"] for row in rows], expected.probs[:, c], atol=1e-6)
    np.testing.assert_allclose([row["energy"] for row in rows], expected.energies, atol=1e-5)
    np.testing.assert_allclose([row["confidence"] for row in rows], expected.confidence, atol=1e-6)
    assert (done.n_rows, done.n_errors, done.n_reused) == (N_ROWS, 0, 0)
    if name != "new.txt":
        assert [row["key"] for row in rows] == [f"k{i}" for i in range(N_ROWS)]
        assert {row["input_energy"] for row in rows} == {"none"}
    assert not working_directories(table)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_output_can_be_evaluated(suffix, table, model):
    labels = [NAMES[i % 3] for i in range(N_ROWS)]
    columns = {"id": [f"k{i}" for i in range(N_ROWS)], "text": TEXTS, "mood": labels, "prob_x": [0.5] * N_ROWS}
    pq.write_table(pa.table(columns), table / "in.parquet")
    predict_file(model, table / "in.parquet", table / f"out{suffix}", label_column="mood")
    found, expected = Predictions.read(table / f"out{suffix}"), model.predict((TEXTS, labels))
    assert found.labels.tolist() == expected.labels.tolist() == [i % 3 for i in range(N_ROWS)]
    assert found.label_names == NAMES
    assert found.ids.tolist() == columns["id"]
    np.testing.assert_allclose(found.probs, expected.probs, atol=1e-6)
    np.testing.assert_allclose(found.energies, expected.energies, atol=1e-5)
    if suffix == ".parquet":
        assert found.meta["calibrator"] == expected.meta["calibrator"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_id_column_becomes_the_id(suffix, table, model):
    (table / "in.csv").write_text("id,ticket,text\nx,007,fine\ny,008,dull\n")
    predict_file(model, table / "in.csv", table / f"out{suffix}", id_column="ticket")
    rows = read(table / f"out{suffix}")
    assert [(row["id"], row["ticket"], row["input_id"]) for row in rows] == [("007", "007", "x"), ("008", "008", "y")]
    assert Predictions.read(table / f"out{suffix}", labels_required=False).ids.tolist() == ["007", "008"]


def test_the_id_column_of_the_training_data_is_remembered(table, model):
    trained = replace(model, card=model.card | {"id_column": "ticket"})
    (table / "in.csv").write_text("ticket,text\n007,fine\n008,dull\n")
    (table / "other.csv").write_text("number,text\n007,fine\n008,dull\n")
    for name in ("in", "other"):
        predict_file(trained, table / f"{name}.csv", table / f"{name}_out.csv")
    assert [row["id"] for row in read(table / "in_out.csv")] == ["007", "008"]
    assert [row["id"] for row in read(table / "other_out.csv")] == ["0", "1"]


def test_many_columns_take_linear_time(tmp_path, model):
    n = 10_000
    (tmp_path / "in.csv").write_text(f"text,energy,{','.join(f'c{i}' for i in range(n))}\nfine,{',' * n}\n")
    start = time.process_time()
    predict_file(model, tmp_path / "in.csv", tmp_path / "out.csv")
    assert time.process_time() - start < 8  # quadratic checks take 20 s and more
    assert len(read(tmp_path / "out.csv")[0]) > n


def test_parquet_types_are_kept(table, model):
    predict_file(model, table / "new.parquet", table / "out.parquet")
    found = pq.read_table(table / "out.parquet")
    assert found.schema.field("size").type == pa.int16()
    assert found.column("size").to_pylist() == list(range(N_ROWS))


def test_pairs(tmp_path, model):
    rows = [{"a": text, "b": "was never dull", "meta": {"x": [1]}} for text in TEXTS[:5]]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict_file(model, tmp_path / "pairs.jsonl", tmp_path / "o.jsonl", text_column="a", text_pair_column="b")
    expected = model.predict([(row["a"], row["b"]) for row in rows])
    found = read(tmp_path / "o.jsonl")
    np.testing.assert_allclose([row["energy"] for row in found], expected.energies, atol=1e-5)
    assert [row["meta"] for row in found] == [row["meta"] for row in rows]


def test_the_columns_of_the_training_data_are_remembered(tmp_path, model):
    from dataclasses import replace

    trained = replace(model, card=model.card | {"text_column": "review"})
    (tmp_path / "in.csv").write_text("text,review\nno,fine\nno,dull\n")
    predict_file(trained, tmp_path / "in.csv", tmp_path / "out.jsonl")
    energies = [row["energy"] for row in read(tmp_path / "out.jsonl")]
    np.testing.assert_allclose(energies, model.energy(["fine", "dull"]), atol=1e-5)
    (tmp_path / "in.txt").write_text("fine\n")
    assert predict_file(trained, tmp_path / "in.txt", tmp_path / "lines.jsonl").n_rows == 1
    pair_model = replace(model, card=model.card | {"is_pair": True})
    with pytest.raises(EbmcalError, match="trained on pairs of texts; name both columns"):
        predict_file(pair_model, tmp_path / "in.csv", tmp_path / "x.csv", text_column="review")


BAD_LINES = {
    "csv": ('id,text\n1,fine\n2,fine,film\n3\n4,"a film"x\n5,\n6,dull\n', ["1", None, None, None, "5", "6"]),
    "jsonl": (
        '{"id": "1", "text": "fine"}\n{"id": "2", \n\n[1]\n{"id": "4", "text": null}\n{"id": "5"}\n'
        '{"id": "6", "text": ["x"]}\n{"id": "7", "text": "dull", "more": 1}\n',
        ["1", None, None, "4", "5", "6", "7"],
    ),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_rows_keep_their_place(kind, suffix, tmp_path, model):
    content, ids = BAD_LINES[kind]
    (tmp_path / f"bad.{kind}").write_text(content)
    done = predict_file(model, tmp_path / f"bad.{kind}", tmp_path / f"out{suffix}")
    rows = read(tmp_path / f"out{suffix}")
    assert [row.get("id") or None for row in rows] == ids
    good = [i for i, row in enumerate(rows) if row.get("predicted")]
    assert good == ([0, 5] if kind == "csv" else [0, 6])
    assert done.n_errors == len(rows) - len(good) == sum(bool(row.get("error")) for row in rows)
    assert done.first_error == next(row["error"] for row in rows if row.get("error"))
    assert done.first_error.startswith("line ")
    if kind == "csv":
        assert "'text' is empty" in rows[4]["error"]
    else:
        assert str(rows[-1]["more"]) == "1"
    with pytest.raises(EbmcalError, match=r"bad\.(csv|jsonl), line \d+.*--strict"):
        predict_file(model, tmp_path / f"bad.{kind}", tmp_path / f"strict{suffix}", strict=True)
    assert not (tmp_path / f"strict{suffix}").exists()


def test_evaluation_leaves_out_error_rows_with_a_warning(tmp_path, model):
    (tmp_path / "in.csv").write_text("text,label\nfine,bad\n,good\ndull,2\nx,none\n")
    for suffix in SUFFIXES:
        predict_file(model, tmp_path / "in.csv", tmp_path / f"out{suffix}", label_column="label")
        with pytest.warns(UserWarning, match="2 rows have an error and are left out"):
            found = Predictions.read(tmp_path / f"out{suffix}")
        assert [found.label_names[y] for y in found.labels] == ["bad", "good"]


def test_bytes_of_another_encoding(tmp_path, model):
    (tmp_path / "odd.csv").write_bytes(b"id,text,note\n1,caf\xe9 film,\xff\n")
    for suffix in SUFFIXES:
        with pytest.warns(UserWarning, match=r"odd\.csv, line 2: .*not UTF-8 were replaced. Is --encoding right"):
            predict_file(model, tmp_path / "odd.csv", tmp_path / f"out{suffix}")
        assert read(tmp_path / f"out{suffix}")[0]["note"] == "\N{REPLACEMENT CHARACTER}"
    predict_file(model, tmp_path / "odd.csv", tmp_path / "latin.csv", encoding="latin-1")
    assert [read(tmp_path / "latin.csv")[0][name] for name in ("text", "note")] == ["café film", "ÿ"]


def test_values_that_a_format_cannot_hold(tmp_path, model):
    """Half characters, NUL, NaN, huge numbers and columns of several types end up in every output."""
    lines = [
        '{"text": "a \\ud800 film\\u0000", "x": NaN, "y": 1, "z": [1, "\\ud800"]}',
        '{"text": "dull", "x": 1e999, "y": "one", "z": {"b": NaN}}',
        f'{{"text": "fine", "x": 1, "y": {10**30}, "z": null}}',
    ]
    (tmp_path / "odd.jsonl").write_text("\n".join(lines))
    for suffix in SUFFIXES:
        with pytest.warns(UserWarning, match="replaced"):
            assert predict_file(model, tmp_path / "odd.jsonl", tmp_path / f"out{suffix}").n_errors == 0
        rows = read(tmp_path / f"out{suffix}")
        assert rows[0]["text"] == "a \N{REPLACEMENT CHARACTER} film "
        assert [str(row["y"]) for row in rows] == ["1", "one", str(10**30)]
    assert [row["x"] for row in read(tmp_path / "out.jsonl")] == [None, None, 1]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 0.5], [1.0, 2.0, 0.5]),
        ([2**60 + 1, 2, 0.5], ["1152921504606846977", "2", "0.5"]),  # as a float it would be another number
        ([1, None, "a"], ["1", None, "a"]),
        ([None, None, [1]], [None, None, "[1]"]),
    ],
)
def test_types_that_change_between_chunks(values, expected, tmp_path, model, monkeypatch):
    monkeypatch.setattr("ebmcal.bulk_prediction.rows.CHUNK_ROWS", 2)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": "fine", "x": x}) + "\n" for x in values))
    predict_file(model, tmp_path / "in.jsonl", tmp_path / "out.parquet")
    assert [row["x"] for row in read(tmp_path / "out.parquet")] == expected


@pytest.mark.parametrize("text", ["one\rtwo", "one\ntwo", 'a "quote", a comma', " spaces "])
def test_csv_cells_survive_a_round_trip(text, tmp_path, model):
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "a", "text": text}) + "\n" + json.dumps({"text": "b"}) + "\n")
    predict_file(model, tmp_path / "in.jsonl", tmp_path / "out.csv")
    assert [row["text"] for row in read(tmp_path / "out.csv")] == [text, "b"]
    found = Predictions.read(tmp_path / "out.csv", labels_required=False)
    assert found.texts == [text, "b"]


def test_formulas_are_escaped_on_request(tmp_path, model):
    cells = ["=1+2", "+1", "-1", "@x", "\ttab", "plain", "'=1"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": f"{c} film", "=c": c}) + "\n" for c in cells))
    predict_file(model, tmp_path / "in.jsonl", tmp_path / "plain.csv")
    assert [row["=c"] for row in read(tmp_path / "plain.csv")] == cells
    predict_file(model, tmp_path / "in.jsonl", tmp_path / "safe.csv", escape_formulas=True)
    rows = read(tmp_path / "safe.csv")
    assert [row["'=c"] for row in rows] == [f"'{c}" for c in cells[:5]] + cells[5:]
    assert float(rows[0]["energy"]) == float(read(tmp_path / "plain.csv")[0]["energy"])  # numbers stay numbers


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_keys_that_appear_late_are_kept(suffix, tmp_path, model):
    lines = [{"text": "fine"}, {"text": "dull", "label": "bad", "note": "n"}, {"text": "a joy", "label": "good"}]
    (tmp_path / "late.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number, options in enumerate([{}, {"label_column": "label"}]):
        predict_file(model, tmp_path / "late.jsonl", tmp_path / f"out{number}{suffix}", **options)
        rows = read(tmp_path / f"out{number}{suffix}")
        assert [row.get("label") or None for row in rows] == [None, "bad", "good"]
        assert [row.get("note") or None for row in rows] == [None, "n", None]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_keys_that_appear_very_late_go_into_other(suffix, tmp_path, model, monkeypatch):
    monkeypatch.setattr("ebmcal.bulk_prediction.rows.PEEKED_ROWS", 2)
    lines = [{"text": "fine", "other": "mine"}, {"text": "dull"}, {"text": "a joy", "note": "n", "energy": 1}]
    (tmp_path / "late.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    predict_file(model, tmp_path / "late.jsonl", tmp_path / f"out{suffix}")
    first, *_, last = read(tmp_path / f"out{suffix}")
    assert first["other" if suffix == ".jsonl" else "input_other"] == "mine"
    if suffix == ".jsonl":
        assert (last["note"], last["input_energy"]) == ("n", 1)
    else:
        assert json.loads(last["other"]) == {"note": "n", "energy": 1}


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_standard_input_and_output(format, model, monkeypatch, capsys):
    feed(monkeypatch, b'\xef\xbb\xbf{"text": "fine"}\n{"text": "dull", "label": "bad"}\n')
    predict_file(model, "-", input_format="jsonl", output_format=format, label_column="label")
    out = capsys.readouterr().out
    rows = [json.loads(line) for line in out.splitlines()] if format == "jsonl" else [*csv.DictReader(io.StringIO(out))]
    assert [row["label"] or None for row in rows] == [None, "bad"]
    assert [row["text"] for row in rows] == ["fine", "dull"]


def test_standard_input_is_read_chunk_by_chunk(model, monkeypatch, capsys):
    monkeypatch.setattr("ebmcal.bulk_prediction.rows.CHUNK_ROWS", 10)
    printed = []

    class Slow(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            if len(printed) == 40:
                return 0
            line = TEXTS[len(printed)].encode() + b"\n"
            printed.append(len(capsys.readouterr().out.splitlines()))
            buffer[: len(line)] = line
            return len(line)

    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BufferedReader(Slow(), buffer_size=512)}))
    assert predict_file(model, "-").n_rows == 40
    assert sum(printed) >= 10  # rows were printed before the last ones were read


@pytest.mark.parametrize(
    ("source", "output", "options", "words"),
    [
        ("new.csv", "new.csv", {}, "is the input"),
        ("new.csv", "there.csv", {}, "exists already.*--overwrite"),
        ("new.csv", "out.xlsx", {}, "out.xlsx: Unknown suffix"),
        ("new.csv", ".", {}, "is a directory"),
        ("new.csv", "out.csv", {"text_column": "txt"}, "new.csv: Unknown column 'txt'. Did you mean 'text'"),
        ("new.csv", "out.csv", {"label_column": "mood"}, "'mood'"),
        ("new.csv", "out.csv", {"id_column": "keys"}, "Did you mean 'key'"),
        ("new.csv", "out.csv", {"label_column": "key"}, "no row could be used.*'k0' is not one of bad, fair, good"),
        ("new.csv", "out.csv", {"input_format": "yaml"}, "input format 'yaml'"),
        ("newer.csv", "out.csv", {}, "newer.csv does not exist. Did you mean 'new.csv'"),
        ("empty.csv", "out.csv", {}, "empty"),
        ("header.csv", "out.csv", {}, "no rows"),
        ("nothing.json", "out.csv", {}, "no rows"),
        ("twice.csv", "out.csv", {}, "2 columns are named 'a'"),
        ("open.csv", "out.csv", {}, "line 3: .*never closed"),
        ("binary.parquet", "out.csv", {}, "binary.parquet"),
        ("no_json.jsonl", "out.csv", {}, "no_json.jsonl: .*not valid JSON"),
        ("damaged.csv.gz", "out.csv", {}, "damaged.csv.gz"),
        ("utf16.csv", "out.csv", {}, "--encoding utf-16"),
    ],
)
def test_what_is_refused(source, output, options, words, table, model):
    files = {"there.csv": b"mine", "empty.csv": b"", "header.csv": b"text\n", "nothing.json": b"[]",
             "binary.parquet": bytes(100), "no_json.jsonl": b"x\ny\n", "twice.csv": b"text,a,a\nfine,1,2\n",
             "open.csv": b'text\nfine\n"open\nx\n',
             "damaged.csv.gz": (table / "new.csv.gz").read_bytes()[:100],
             "utf16.csv": "text\nfine\n".encode("utf-16")}  # fmt: skip
    for name, content in files.items():
        (table / name).write_bytes(content)
    before = (table / "new.csv").read_bytes()
    with pytest.raises(EbmcalError, match=words):
        predict_file(model, table / source, table / output, **options)
    assert (table / "there.csv").read_text() == "mine"
    assert (table / "new.csv").read_bytes() == before
    assert not (table / "out.csv").exists()
