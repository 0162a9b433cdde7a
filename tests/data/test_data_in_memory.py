"""Objects in memory as files: the same contents give the same file, and what cannot be a table is refused clearly."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data import DataSource, load_data
from ebmcal.data.in_memory import as_table_file
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError

TEXTS = ["fine film", "dull film, overlong", "ｗｉｄｅ 😀"]
NAMES = ["good", "bad", "good"]
LABELLED = Columns("text", None, "label")


class ArrowOnly:
    """Speaks the Arrow stream protocol and nothing else, as a duckdb relation does; strings as polars exports them."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def as_dataset():
    datasets = pytest.importorskip("datasets")
    # chosen rows, in another order than they are stored in
    return datasets.Dataset.from_dict({"text": [*TEXTS[::-1], "x"], "label": [*NAMES[::-1], "y"]}).select([2, 1, 0])


def as_string_views():
    views = pa.table({"label": pa.array(NAMES), "other": [[1], [2], [3]], "text": pa.array(TEXTS, pa.string_view())})
    return ArrowOnly(views)


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
    "pyarrow": lambda: pa.concat_tables([pa.table({"text": [t], "label": [n]}) for t, n in zip(TEXTS, NAMES)]),  # noqa: B905
    "reader": lambda: pa.table({"text": TEXTS, "label": NAMES}).to_reader(max_chunksize=2),
    "arrow stream": as_string_views,
    "datasets": as_dataset,
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_contents_are_the_same_file(kind, tmp_path):
    wanted = as_table_file((TEXTS, NAMES), tmp_path / "a", LABELLED)[0]
    path, columns = as_table_file(SAME[kind](), tmp_path / "b", LABELLED)
    assert path.name == wanted.name
    assert path.read_bytes() == wanted.read_bytes()
    assert columns == LABELLED
    assert pq.read_table(path).to_pydict() == {"text": TEXTS, "label": NAMES}
    assert [p.name for p in (tmp_path / "b").iterdir()] == [path.name]


def test_other_contents_are_another_file(tmp_path):
    sources = [TEXTS, TEXTS[::-1], (TEXTS, NAMES), (TEXTS, [0, 1, 0]), [(text, "b") for text in TEXTS], TEXTS[:2]]
    assert len({as_table_file(source, tmp_path)[0] for source in sources}) == len(sources)


def test_a_path_is_handed_back(tmp_path):
    assert as_table_file("a/train.csv", tmp_path)[0].as_posix() == "a/train.csv"
    assert as_table_file(tmp_path / "train.csv", tmp_path)[0] == tmp_path / "train.csv"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "pairs", [[("a", "b"), ("c", "d")], [["a", "b"], ["c", "d"]], np.array([["a", "b"], ["c", "d"]])]
)
def test_pairs_and_the_names_of_their_columns(pairs, tmp_path):
    path, columns = as_table_file(pairs, tmp_path)
    assert columns == Columns("text", "text_pair", None)
    assert pq.read_table(path).to_pydict() == {"text": ["a", "c"], "text_pair": ["b", "d"]}
    path, columns = as_table_file((pairs, [1, 0]), tmp_path, Columns("premise", "hypothesis", "gold"))
    assert columns == Columns("premise", "hypothesis", "gold")
    assert pq.read_table(path).column_names == ["premise", "hypothesis", "gold"]


def test_a_single_column_of_arrow_is_a_list_of_texts(tmp_path):
    assert as_table_file(pd.Series(TEXTS), tmp_path) == as_table_file(TEXTS, tmp_path)
    assert as_table_file(pa.chunked_array([TEXTS]), tmp_path) == as_table_file(TEXTS, tmp_path)


def test_missing_labels_stay_missing(tmp_path):
    for labels in ([1, None, 0], [1.0, float("nan"), 0.0], pd.Series([1, None, 0])):
        path, _ = as_table_file((TEXTS, labels), tmp_path)
        assert pq.read_table(path)["label"].to_pylist() == [1, None, 0]


def test_a_run_reads_a_frame_as_it_reads_its_file(tmp_path):
    frame = pd.DataFrame({"review": [f"film {i}" for i in range(60)], "stars": [i % 3 for i in range(60)]})
    frame.to_csv(tmp_path / "films.csv", index=False)
    path, columns = as_table_file(frame, tmp_path, Columns("review", None, "stars"))
    named = {"text_column": columns.text, "label_column": columns.label}
    from_memory = load_data(DataSource(train=path, **named), tmp_path / "cache")
    from_file = load_data(DataSource(train=tmp_path / "films.csv", **named), tmp_path / "cache")
    assert from_memory.fingerprint == from_file.fingerprint


BAD = {
    "fewer labels": ((TEXTS, NAMES[:2]), "'text' has 3, 'label' has 2"),
    "columns of other lengths": ({"text": TEXTS, "label": NAMES[:1]}, "'text' has 3, 'label' has 1"),
    "nan text": ((["a", float("nan"), None], NAMES), "lacks 2 of 3 texts .* row 1 from 0"),
    "nan text in a frame": (pd.DataFrame({"text": ["a", np.nan], "label": [0, 1]}), "lacks 1 of 2 texts"),
    "numbers as texts": (([1, 2, 3], NAMES), "begins with 1 .int.; texts must be strings"),
    "bytes": (([b"a", b"b", b"c"], NAMES), "texts must be strings"),
    "a number among texts": ((["a", 2, "c"], NAMES), "begins with 'a' .str. and has 2 .int. in row 1"),
    "lists as labels": ((TEXTS, [[1], [2], [3]]), r"begins with \[1\] .list.; labels must be"),
    "mixed labels": ((TEXTS, ["a", 1, "b"]), "'label' mixes kinds"),
    "lone surrogate": ((["a", "b\ud800", "c"], NAMES), "row 1 from 0 has a lone surrogate"),
    "broken pair": (([("a", "b"), ("c",)], [0, 1]), r"Row 1 is \('c',\)"),
    "missing column": ({"txt": TEXTS, "label": NAMES}, "The dict: Unknown column 'text'. Did you mean 'txt'"),
    "missing column in a table": (pa.table({"txt": TEXTS, "label": NAMES}), "The Table: Unknown column 'text'"),
    "column twice": (pa.table([TEXTS, TEXTS, NAMES], names=["text", "text", "label"]), "2 columns named 'text'"),
    "no labels": (TEXTS, "without labels"),
    "two strings": (("a", "b"), "may be two texts or one pair"),
    "no rows": (([], []), "has no rows"),
    "a number": (7, r"7 \(int\); accepted are a path"),
    "a set": (({"a", "b"}, [0, 1]), "set.; accepted are"),
    "one string as texts": (("a text", [0]), "accepted are"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_table_is_refused(case, tmp_path):
    source, message = BAD[case]
    with pytest.raises(EbmcalError, match=message):
        as_table_file(source, tmp_path / "new", LABELLED)
    assert not (tmp_path / "new").exists()


def test_pairs_that_were_named_and_are_not_there(tmp_path):
    with pytest.raises(EbmcalError, match=r"'hypothesis'.* came single"):
        as_table_file((TEXTS, NAMES), tmp_path, Columns("premise", "hypothesis", "label"))


def test_several_splits_are_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    with pytest.raises(EbmcalError, match=r"splits \(train, test\).*data\['train'\]"):
        as_table_file(datasets.DatasetDict({"train": as_dataset(), "test": as_dataset()}), tmp_path)
    with pytest.raises(EbmcalError, match=r"Column 'text' begins with \{"):
        as_table_file(as_dataset().to_iterable_dataset(), tmp_path)
