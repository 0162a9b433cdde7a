"""`as_dataset`: objects in memory give the same Dataset as files; what is no table is refused with the reason."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ebmcal.data import COLUMNS, DataConfig, as_dataset, dataset_fingerprint, load_task
from ebmcal.errors import EbmcalError

datasets = pytest.importorskip("datasets")

TEXTS = ["fine film", "dull film, overlong", "ｗｉｄｅ 😀"]
NAMES = ["good", "bad", "good"]


class ArrowOnly:
    """Supports the Arrow stream protocol and nothing else, as a duckdb relation or a polars frame does."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def chosen_rows():
    rows = datasets.Dataset.from_dict({"text": [*TEXTS[::-1], "x"], "label": [*NAMES[::-1], "y"]})
    return rows.select([2, 1, 0])


def string_views():
    return ArrowOnly(
        pa.table({"label": pa.array(NAMES), "other": [[1], [2], [3]], "text": pa.array(TEXTS, pa.string_view())})
    )


SAME = {
    "lists": lambda: (TEXTS, NAMES),
    "arrays": lambda: (np.array(TEXTS), np.array(NAMES)),
    "generator and tuple": lambda: ((text for text in TEXTS), tuple(NAMES)),
    "series": lambda: (pd.Series(TEXTS), pd.Series(NAMES, index=[7, 8, 9])),
    "arrow columns": lambda: (pa.array(TEXTS), pa.chunked_array([NAMES[:1], NAMES[1:]])),
    "dict": lambda: {"text": TEXTS, "label": NAMES, "other": [1]},
    "pandas": lambda: pd.DataFrame({"label": NAMES, "text": TEXTS, "other": [object(), 1, "x"]}),
    "pandas categories": lambda: pd.DataFrame({"text": TEXTS, "label": pd.Categorical(NAMES)}),
    "pandas objects": lambda: pd.DataFrame({"text": TEXTS, "label": NAMES}, dtype=object),
    "pandas columns that are no strings": lambda: pd.DataFrame({"text": TEXTS, "label": NAMES, 3: [1, 2, 3]}),
    "pyarrow": lambda: pa.concat_tables([pa.table({"text": [t], "label": [n]}) for t, n in zip(TEXTS, NAMES)]),  # noqa: B905
    "reader": lambda: pa.table({"text": TEXTS, "label": NAMES}).to_reader(max_chunksize=2),
    "arrow stream": string_views,
    "datasets": chosen_rows,
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_rows_in_any_object(kind):
    dataset = as_dataset(SAME[kind](), label_column="label")
    assert dataset[:] == {"id": ["0", "1", "2"], "text": TEXTS, "label": [1, 0, 1]}
    assert dataset.features["label"].names == ["bad", "good"]
    assert dataset_fingerprint(dataset) == dataset_fingerprint(as_dataset((TEXTS, NAMES)))


def test_a_list_of_texts_has_no_labels():
    for texts in (TEXTS, tuple(TEXTS), iter(TEXTS), pd.Series(TEXTS), pa.chunked_array([TEXTS]), np.array(TEXTS)):
        assert as_dataset(texts)[:] == {"id": ["0", "1", "2"], "text": TEXTS, "label": [-1, -1, -1]}
    assert as_dataset([""])["text"][:] == [""]


@pytest.mark.parametrize(
    "pairs", [[("a", "b"), ("c", "d")], [["a", "b"], ["c", "d"]], np.array([["a", "b"], ["c", "d"]])]
)
def test_pairs(pairs):
    for dataset in (as_dataset(pairs), as_dataset((pairs, [1, 0]), text_column="premise", label_column="gold")):
        assert dataset.column_names == list(COLUMNS)
        assert (dataset["text"][:], dataset["text_pair"][:]) == (["a", "c"], ["b", "d"])


@pytest.mark.parametrize(
    ("labels", "names", "classes"),
    [
        ([1, None, 0], ["0", "1"], [1, -1, 0]),
        ([1.0, float("nan"), 0.0], ["0", "1"], [1, -1, 0]),
        (pd.Series([1, None, 0]), ["0", "1"], [1, -1, 0]),
        ([True, False, True], ["false", "true"], [1, 0, 1]),
        (np.array([10, 9, 10]), ["9", "10"], [1, 0, 1]),
        ([-1, 1, -1], ["-1", "1"], [0, 1, 0]),
        (["1.0", "2", " 2 "], ["1", "2"], [0, 1, 1]),
        (["01", "10", "01"], ["01", "10"], [0, 1, 0]),
    ],
)
def test_kinds_of_labels(labels, names, classes):
    dataset = as_dataset((TEXTS, labels))
    assert dataset.features["label"].names == names
    assert dataset["label"][:] == classes


def test_given_label_names_accept_names_and_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,1\ny,0\nz,\nu,-1\n")
    named = as_dataset(path, label_column="label", label_names=("negative", "positive"))
    assert named["label"][:] == [1, 0, -1, -1]
    with pytest.raises(EbmcalError, match=r"labels '0' \(1 row, first in line 3\), '-1' .*: not in label_names"):
        as_dataset(path, label_column="label", label_names=("1", "2"))


def test_class_labels_of_a_dataset_are_matched_by_name():
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["good", "bad"]))
    rows = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1, -1]}, features=features)
    assert as_dataset(rows, label_column="label").features["label"].names == ["good", "bad"]
    assert as_dataset(rows, label_column="label")["label"][:] == [0, 1, -1]
    assert as_dataset(rows, label_column="label", label_names=["bad", "good"])["label"][:] == [1, 0, -1]


def test_its_own_result_is_returned_unchanged_unless_the_labels_differ():
    dataset = as_dataset((TEXTS, NAMES))
    assert as_dataset(dataset) is dataset
    assert as_dataset(dataset, text_column="sentence", label_names=("bad", "good")) is dataset
    assert as_dataset(dataset, label_names=("good", "bad"))["label"][:] == [0, 1, 0]
    unlabelled = as_dataset(TEXTS)
    assert as_dataset(unlabelled, label_names=("good", "bad")) is unlabelled
    own = datasets.Dataset.from_dict({"id": ["a", "b"], "text": TEXTS[:2], "label": [1, 2]})
    assert as_dataset(own, label_column="label", label_names=("1", "2"))["label"][:] == [0, 1]


def test_ids(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('key,text,note,label\nk1,"one\nline",fine,x\nk2,broken\nk3,two,,y\n')
    with pytest.warns(UserWarning, match=r"a.csv: 1 row with too few fields: left out \(line 4 of a.csv\)"):
        dataset = as_dataset(path, id_column="key", label_column="label")
    assert dataset[:] == {"id": ["k1", "k3"], "text": ["one\nline", "two"], "label": [0, 1]}
    with pytest.raises(EbmcalError, match="Column 'key' has no id in row 1"):
        as_dataset({"key": ["a", ""], "text": ["x", "y"]}, id_column="key")


def test_a_run_reads_a_frame_as_it_reads_its_file(tmp_path):
    frame = pd.DataFrame({"review": [f"film {i}" for i in range(60)], "stars": [i % 3 for i in range(60)]})
    frame.to_csv(tmp_path / "films.csv", index=False)
    tasks = [
        load_task(DataConfig(train=train, text_column="review", label_column="stars"), tmp_path / "cache")
        for train in (frame, tmp_path / "films.csv", str(tmp_path / "films.csv"))
    ]
    assert tasks[0].fingerprints == tasks[1].fingerprints == tasks[2].fingerprints
    assert [task.name for task in tasks] == ["in-memory data", "films", "films"]


BAD = {
    "fewer labels": ((TEXTS, NAMES[:2]), "'text': 3, 'label': 2"),
    "columns of other lengths": ({"text": TEXTS, "label": NAMES[:1]}, "'text': 3, 'label': 1"),
    "nan text": ((["a", float("nan"), None], NAMES), "lacks 2 of 3 texts .* row 1"),
    "nan text in a frame": (pd.DataFrame({"text": ["a", np.nan], "label": [0, 1]}), "lacks 1 of 2 texts"),
    "numbers as texts": (([1, 2, 3], NAMES), "starts with 1 .int.; expected strings"),
    "bytes": (([b"a", b"b", b"c"], NAMES), "expected strings"),
    "a number among texts": ((["a", 2, "c"], NAMES), "'text' cannot be read as values of one type"),
    "lists as labels": ((TEXTS, [[1], [2], [3]]), "Column 'label' has a list at row 0"),
    "mixed labels": ((TEXTS, ["a", 1, "b"]), "'label' cannot be read as values of one type"),
    "numbers and names": ((TEXTS, ["a", "1", "b"]), "mix numbers .'1'. and names .'a', 'b'"),
    "lone surrogate": ((["a", "b\ud800", "c"], NAMES), "surrogates not allowed"),
    "broken pair": (([("a", "b"), ("c",)], [0, 1]), r"Row 1 is \('c',\)"),
    "missing column": ({"txt": TEXTS, "label": NAMES}, "the dict: Unknown column 'text'. Did you mean 'txt'"),
    "missing column in a table": (pa.table({"txt": TEXTS, "label": NAMES}), "the Table: Unknown column 'text'"),
    "column twice": (pa.table([TEXTS, TEXTS, NAMES], names=["text", "text", "label"]), "2 columns are named 'text'"),
    "no labels": (TEXTS, r"Pass \(texts, labels\)"),
    "two strings": (("a", "b"), "two texts or one pair"),
    "no rows": (([], []), "no rows"),
    "a number": (7, r"expected a path.*; got 7 \(int\)"),
    "a set": (({"a", "b"}, [0, 1]), "expected a path"),
    "one string as texts": (("a text", [0]), "expected a path"),
    "a text": ("some text here", "There is no file 'some text here'. To pass a text, use a list"),
    "a text with a tilde": ("~5 dollars", "There is no file .~5 dollars"),
    "a missing file": ("/nowhere/my films.csv", "/nowhere/my films.csv does not exist"),
    "a misspelt suffix": (str(Path(__file__).with_suffix(".yp")), "does not exist. Did you mean 'test_as_dataset.py'"),
    "splits": (datasets.DatasetDict({"train": chosen_rows()}), r"expected one split .*data\['train'\]"),
    "a stream of rows": (chosen_rows().to_iterable_dataset(), "the IterableDataset: .* not streamed"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_table_is_refused(case):
    data, message = BAD[case]
    with pytest.raises(EbmcalError, match=message):
        as_dataset(data, text_column="text", label_column="label")


def test_pairs_that_were_named_and_are_not_there():
    with pytest.raises(EbmcalError, match=r"text_pair_column is 'hypothesis', but the data has single texts"):
        as_dataset((TEXTS, NAMES), text_pair_column="hypothesis")
