"""Predictions: construction, files of every kind in and out, other people's files, and garbage."""

import contextlib
import json
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebmcal import Predictions
from ebmcal.data import as_dataset
from ebmcal.errors import EbmcalError
from ebmcal.predictions import align, ensemble, softmax

SUFFIXES = ["parquet", "csv", "jsonl"]
NAMES = ("no", "yes", "maybe, «ü»")
ODD_TEXTS = [
    "plain", "with, comma", 'with "quotes"', "two\nlines", "", "None", "ünï 🙂", "one\rtwo", "\r", "a\r\nb",
    'say "x"\r', "=1+1", "long, " * 500_000,
]  # fmt: skip


def sample(kind="logits", dtype=np.float64, names=NAMES, n_rows=7, **more):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n_rows, len(names)))
    matrix = logits if kind == "logits" else softmax(logits)
    labels = rng.integers(0, len(names), n_rows)
    return Predictions(labels, names, **{kind: matrix.astype(dtype)}, **more)


def assert_same(a, b, rtol=0.0):
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.label_names == b.label_names
    assert a.ids.tolist() == b.ids.tolist()
    assert (a.texts, a.text_pairs) == (b.texts, b.text_pairs)
    for name in ("logits", "probs", "energies"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_allclose(x, y, rtol=rtol, atol=0)


def test_derived_quantities():
    p = Predictions([1, 0], ("no", "yes"), logits=[[0.0, 0.0], [0.0, np.log(3.0)]])
    np.testing.assert_allclose(p.probs, [[0.5, 0.5], [0.25, 0.75]])
    np.testing.assert_allclose(p.confidence, [0.5, 0.75])
    np.testing.assert_array_equal(p.predicted, [0, 1])
    np.testing.assert_allclose(p.entropy, [np.log(2), -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))])
    assert (p.n_rows, p.n_classes, p.ids.tolist()) == (2, 2, ["0", "1"])


def test_labelled_rows_in_every_field():
    texts, knn = list("abcdefg"), np.arange(7.0)
    p = sample(texts=texts, ids=texts, text_pairs=texts, energies=knn, distances={"knn": knn}).replace(
        labels=[0, -1, 1, -1, 2, -1, 0]
    )
    known = p.labelled()
    assert_same(known, p.rows([0, 2, 4, 6]))
    assert (known.labels.tolist(), known.texts, known.text_pairs) == ([0, 1, 2, 0], list("aceg"), list("aceg"))
    assert known.ids.tolist() == list("aceg")
    assert known.distances["knn"].tolist() == known.energies.tolist() == [0, 2, 4, 6]


def test_replace_changes_a_copy():
    p = sample(energies=np.zeros(7))
    q = p.replace(energies=None, meta={"seed": 2})
    assert (q.energies, q.meta, p.meta) == (None, {"seed": 2}, {})
    assert p.energies is not None
    np.testing.assert_array_equal(q.logits, p.logits)
    assert p.replace(probs=p.probs).logits is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": [0, 3]}, r"labels\[1\] is 3"),
        ({"labels": [0]}, "labels has 1 row"),
        ({"label_names": ("a",)}, "Expected 2 label names, got 1"),
        ({"label_names": ("a", "a")}, "must be unique"),
        ({"label_names": ("a", "")}, "not empty"),
        ({"logits": [[0.0, 1.0]] * 2}, "got both"),
        ({"probs": None}, "neither"),
        ({"energies": [0.0, np.inf]}, r"energies\[1\] is inf"),
        ({"ids": ["a"]}, "ids has 1 row"),
        ({"texts": ["a"]}, "texts has 1 row"),
        ({"probs": [[0.5, 0.5], [0.9, 0.9]]}, r"probs\[1\] sums to"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    good = {"labels": [0, 1], "label_names": ("a", "b"), "probs": [[0.5, 0.5]] * 2}
    with pytest.raises(EbmcalError, match=message):
        Predictions(**(good | fields))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_what_is_written_is_read(tmp_path, suffix, kind):
    n = len(ODD_TEXTS)
    p = sample(
        kind, n_rows=n, energies=np.arange(n) / 3, ids=[f"row {i}" for i in range(n)], texts=ODD_TEXTS,
        text_pairs=["x"] * n, meta={"task": "t", "seed": 3},
    )  # fmt: skip
    p.write(tmp_path / f"p.{suffix}")
    back = Predictions.read(tmp_path / f"p.{suffix}")
    assert_same(p, back)
    assert back.meta == (p.meta if suffix == "parquet" else {})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_kept(tmp_path, dtype):
    sample(dtype=dtype).write(tmp_path / "p.parquet")
    assert Predictions.read(tmp_path / "p.parquet").logits.dtype == dtype


def test_bfloat16_is_kept_as_float32():
    logits = np.float32([[1.5, -2.0], [0.25, 3.0]])  # exact in bfloat16
    p = Predictions([0, 1], ("a", "b"), logits=logits.astype(pytest.importorskip("ml_dtypes").bfloat16))
    assert p.logits.dtype == np.float32
    np.testing.assert_array_equal(p.logits, logits)


def test_parquet_layout(tmp_path):
    p = sample(energies=np.zeros(7), texts=["t"] * 7, meta={"seed": 1})
    p.write(tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["id", "label", "label_name", *(f"logit_{n}" for n in NAMES), "energy", "text"]
    assert pa.types.is_integer(table.schema.field("label").type)
    assert table["label_name"].to_pylist() == [NAMES[i] for i in p.labels]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_of_another_model_with_names(tmp_path):
    path = write(tmp_path / "p.csv", "id,prob_b,label,prob_a,note\n007,0.25,a,0.75,x\n008,0.5,b,0.5,y\n")
    p = Predictions.read(path)
    assert p.label_names == ("b", "a")
    assert p.labels.tolist() == [1, 0]
    assert p.ids.tolist() == ["007", "008"]
    assert Predictions.read(path, label_names=["a", "b"]).labels.tolist() == [0, 1]


def test_csv_integer_label_is_the_class_if_classes_are_integers(tmp_path):
    path = write(tmp_path / "p.csv", "label,prob_5,prob_1,prob_-1\n1,0,1,0\n5,1,0,0\n-1,0,0,1\n1.0,0,1,0\n")
    assert Predictions.read(path).labels.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reordering_classes_moves_columns_and_labels(tmp_path, suffix):
    p = Predictions([0, 1, 2, -1], ("2", "0", "1"), logits=np.eye(4, 3))  # names that are other integers
    p.write(tmp_path / f"p.{suffix}")
    assert_same(p, Predictions.read(tmp_path / f"p.{suffix}"))
    q = Predictions.read(tmp_path / f"p.{suffix}", label_names=["1", "2", "0"])
    assert q.labels.tolist() == [1, 2, 0, -1]
    np.testing.assert_array_equal(q.logits, p.logits[:, [2, 0, 1]])


def test_numbered_classes_can_be_named(tmp_path):
    path = write(tmp_path / "p.csv", "label,prob_0,prob_1\n1,0,1\n")
    assert Predictions.read(path, label_names=["no", "yes"]).label_names == ("no", "yes")
    with pytest.raises(EbmcalError, match="the classes are 0, 1; expected no, yes, maybe"):
        Predictions.read(path, label_names=["no", "yes", "maybe"])


def test_parquet_of_another_model_in_odd_types(tmp_path):
    table = pa.table(
        {
            "label": pa.array(["a", "b"]).dictionary_encode(),
            "prob_a": pa.array(np.float16([0.25, 1.0])),
            "prob_b": pa.array([0.75, 0.0], pa.float32()),
            "id": [1, 2],
        }
    )
    pq.write_table(table, tmp_path / "p.parquet")
    p = Predictions.read(tmp_path / "p.parquet")
    assert p.labels.tolist() == [0, 1]
    assert p.probs.dtype == np.float64
    np.testing.assert_array_equal(p.probs, [[0.25, 0.75], [1.0, 0.0]])


@pytest.mark.parametrize("note", [b"[]", b"x", b'{"label_names": [1, 2]}', b'{"label_names": 3}', b'{"meta": [1]}'])
def test_parquet_with_an_odd_note_is_read_or_refused(tmp_path, note):
    table = pa.table({"label": ["1", "2"], "prob_1": [1.0, 0.0], "prob_2": [0.0, 1.0]})
    pq.write_table(table.replace_schema_metadata({b"ebmcal": note}), tmp_path / "p.parquet")
    with contextlib.suppress(EbmcalError):
        assert Predictions.read(tmp_path / "p.parquet").label_names == ("1", "2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as csv"),
        ("label,prob_a,prob_b\n", "has no rows"),
        ("label,a,b\nx,1,0\n", "no class columns.*'a', 'b'"),
        ("y,prob_a,prob_b\na,1,0\n", "no column 'label'.*'y', 'prob_a'"),
        ("label,prob_a,logit_b\na,1,0\n", "both 'logit_b' and 'prob_a'"),
        ("label,prob_a,prob_b\na,1,0\nc,0,1\n", "line 3, column 'label': Unknown class 'c'"),
        ("label,prob_a,prob_b\na,1,0\n2,0,1\n", "line 3, column 'label': Unknown class '2'"),
        ("label,prob_a,prob_b\na,1,0\nb,nan,1\n", "line 3, column 'prob_a' is nan"),
        ("label,prob_a,prob_b\na,1,0\nb,x,1\n", "prob_a|column #1|Row #3"),
        ("label,prob_a,prob_a\na,1,0\n", "column 'prob_a' more than once"),
        ("label,prob_a,prob_b\na,1,0\nb,0.9,0.9\n", "line 3, probs sums to 1.8"),
        ('label,text,prob_a,prob_b\n\na,"x\ny",1,0\nc,z,0,1\n', "line 5, column 'label': Unknown class 'c'"),
        ("label,error,prob_a,prob_b\n,empty,,\na,,1,0\nc,,0,1\n", "line 4, column 'label': Unknown class 'c'"),
        ("label,prob_a,prob_b\na,3,-2\n", "logits="),
        ("label,prob_a,prob_b\na,97,3\n", "Divide percentages by 100"),
        ("label,prob_a,prob_None\nx,1,0\n", "Unknown class 'x'"),
        ("label,prob_\n,1\n", "not empty"),
        ("label,prob_1\n1,0.9\n0,0.2\n", r"line 3, column 'label' is 0, but there is only one class column \(1\)"),
        ("label,prob_a,energy\na,1,inf\n", "line 2, column 'energy' is inf"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*1 row has an error")
def test_bad_csv_is_named(tmp_path, text, message):
    path = write(tmp_path / "p.csv", text)
    with pytest.raises(EbmcalError, match=message) as caught:
        Predictions.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"label": 0, "prob_a": 1}\n[1]', "line 2: expected a JSON object"),
        ('{"label": 0, "prob_a": 1}\n{"label": 0}', "line 2, column 'prob_a' is None; expected a number"),
        ('{"label": 0, "prob_a": [1]}', "line 1, column 'prob_a'"),
        ('{"label": {}, "prob_a": 1}', "only one class column"),
        ('{"label": 0, "prob_a": 1' + "0" * 400 + "}", "line 1, column 'prob_a'"),
        ("[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_bad_jsonl_is_named(tmp_path, text, message):
    with pytest.raises(EbmcalError, match=message):
        Predictions.read(write(tmp_path / "p.jsonl", text))


def test_missing_folder_and_unknown_suffix(tmp_path):
    with pytest.raises(EbmcalError, match="does not exist"):
        Predictions.read(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(EbmcalError, match="is a directory"):
        Predictions.read(tmp_path / "folder.csv")
    write(tmp_path / "p.xls", "x")
    with pytest.raises(EbmcalError, match=r"Unknown suffix '.xls'.*\.parquet"):
        Predictions.read(tmp_path / "p.xls")
    with pytest.raises(EbmcalError, match="Unknown suffix"):
        sample().write(tmp_path / "p.pkl")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_cut_short_at_any_place_are_refused_or_shorter(tmp_path, suffix):
    whole = tmp_path / f"whole.{suffix}"
    sample(n_rows=20).write(whole)
    data = whole.read_bytes()
    cut = tmp_path / f"cut.{suffix}"
    for size in np.linspace(0, len(data) - 1, 40).astype(int):
        cut.write_bytes(data[:size])
        with contextlib.suppress(EbmcalError):
            p = Predictions.read(cut)
            # Text files have no length of their own; binary ones must notice.
            assert suffix in ("csv", "jsonl")
            assert p.n_rows <= 20


def test_a_flipped_bit_in_the_data_of_a_parquet_is_noticed(tmp_path):
    path = tmp_path / "p.parquet"
    sample(n_rows=500).write(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(EbmcalError, match="cannot be read as parquet"):
        Predictions.read(path)


@pytest.mark.filterwarnings("ignore:The labels are numbers")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SUFFIXES),
    st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=8),
    st.booleans(),
)
def test_garbage_never_raises_anything_else(tmp_path_factory, suffix, raw, flips, damaged):
    path = tmp_path_factory.mktemp("fuzz") / f"p.{suffix}"
    if damaged:
        sample().write(path)
        data = bytearray(path.read_bytes())
        for place, byte in flips:
            data[place % len(data)] = byte
        path.write_bytes(data)
    else:
        path.write_bytes(raw)
    with contextlib.suppress(EbmcalError):
        Predictions.read(path)


cell = st.one_of(st.none(), st.booleans(), st.integers(-3, 5), st.floats(), st.text(max_size=4), st.just([1]))


@pytest.mark.filterwarnings("ignore:The labels are numbers")  # said of rows that may be read
@settings(max_examples=150, deadline=None)
@example([{"label": False, "prob_a": False}])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                ["label", "prob_a", "prob_b", "logit_a", "energy", "id", "text", "labels", "probs", "logits"]
            ),
            cell,
        ),
        max_size=4,
    )
)
def test_any_json_rows_are_read_or_refused(tmp_path_factory, rows):
    path = write(tmp_path_factory.mktemp("fuzz") / "p.jsonl", "\n".join(map(json.dumps, rows)))
    try:
        p = Predictions.read(path)
    except EbmcalError:
        return
    assert p.n_rows == len(rows)
    assert np.isfinite(p.probs).all()


name = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\n"), min_size=1, max_size=6)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("word", ["None", "nan", "NA", "null"])
def test_only_empty_labels_are_missing_as_in_training_files(tmp_path, suffix, word):
    path = tmp_path / f"p.{suffix}"

    def write(name):
        columns = {"text": list("abcd"), "label": [word, "some", None, word], "prob_some": 0.5, f"prob_{name}": 0.5}
        frame = pd.DataFrame(columns)
        lines = partial(frame.to_json, orient="records", lines=True)
        {"csv": partial(frame.to_csv, index=False), "jsonl": lines, "parquet": frame.to_parquet}[suffix](path)

    write(word)
    p = Predictions.read(path)
    assert [p.label_names[i] if i >= 0 else None for i in p.labels] == [word, "some", None, word]
    assert sorted(as_dataset(path, label_column="label").features["label"].names) == sorted([word, "some"])
    write("other")
    with pytest.raises(EbmcalError, match=f"Unknown class '{word}'.*Leave the field empty"):
        Predictions.read(path)


def test_true_and_false_are_spelt_as_in_training_files(tmp_path):
    path = tmp_path / "p.jsonl"
    for names in (("true", "false"), ("True", "False")):
        rows = [{"label": label, f"prob_{names[0]}": 0.5, f"prob_{names[1]}": 0.5} for label in (None, True, False)]
        write(path, "\n".join(map(json.dumps, rows)))
        assert Predictions.read(path).labels.tolist() == [-1, 0, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SUFFIXES),
    st.lists(name, min_size=1, max_size=4, unique=True),
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.data(),
)
def test_any_predictions_survive_any_file(tmp_path_factory, suffix, names, dtype, data):
    n_rows = data.draw(st.integers(1, 5))
    labels = data.draw(st.lists(st.integers(-1, len(names) - 1), min_size=n_rows, max_size=n_rows))
    number = st.floats(-6e4, 6e4, width=16)
    logits = np.array(
        data.draw(
            st.lists(st.lists(number, min_size=len(names), max_size=len(names)), min_size=n_rows, max_size=n_rows)
        )
    )
    ids = data.draw(st.lists(name, min_size=n_rows, max_size=n_rows))
    p = Predictions(labels, tuple(names), logits=logits.astype(dtype), ids=ids, texts=ids)
    path = tmp_path_factory.mktemp("trip") / f"p.{suffix}"
    p.write(path)
    assert_same(p, Predictions.read(path), rtol=1e-6)


def test_align_refuses_what_cannot_be_paired():
    a = sample(ids=list("abcdefg"))
    with pytest.raises(EbmcalError, match="id 'a' is on rows 0 and 6"):
        align([sample(ids=list("abcdefa")), a])
    with pytest.raises(EbmcalError, match="only in the first.*ids of number 2 are row numbers"):
        align([a, sample()])
    with pytest.raises(EbmcalError, match="id 'a' is only in the first"):
        align([a, sample(ids=list("xbcdefg"))])
    with pytest.raises(EbmcalError, match="Classes differ"):
        align([a, sample(ids=list("abcdefg"), names=("x", "y", "z"))])
    b = sample(ids=list("abcdefg"))
    b.labels[2] = (b.labels[2] + 1) % 3
    with pytest.raises(EbmcalError, match="id 'c' has another label in number 2"):
        align([a, b])


def test_an_ensemble_averages_probabilities_and_energies_over_matched_rows():
    one = sample(energies=np.arange(7.0), meta={"method": "hidden", "seed": 1})
    other = one.replace(logits=one.logits[:, ::-1], energies=np.ones(7), meta={"method": "hidden", "seed": 2})
    mixed = ensemble([one, other.rows([3, 1, 0, 2, 6, 5, 4]).reorder((NAMES[2], NAMES[0], NAMES[1]))])
    np.testing.assert_allclose(mixed.probs, (one.probs + other.probs) / 2)
    np.testing.assert_allclose(mixed.energies, (np.arange(7.0) + 1) / 2)
    assert (mixed.logits, mixed.meta["method"], "seed" in mixed.meta) == (None, "hidden", False)
    assert [meta["seed"] for meta in mixed.meta["ensemble"]] == [1, 2]
    assert ensemble([one, other.replace(energies=None)]).energies is None
    with pytest.raises(EbmcalError, match="at least two models, got 1"):
        ensemble([one])
    with pytest.raises(EbmcalError, match="the classes are a, b, c"):
        ensemble([one, sample(names=("a", "b", "c"))])
