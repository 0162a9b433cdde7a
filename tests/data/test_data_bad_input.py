"""Bad input: each mistake is refused with a message that says what came and what to do, before any work."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebmcal.data import DataSource, load_data, load_texts
from ebmcal.errors import EbmcalError

GOOD = "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(60))


@pytest.fixture
def folder(tmp_path):
    """A folder with a sound training file and many others that have one thing wrong."""
    files = {
        "train.csv": GOOD,
        "one_class.csv": "text,label\n" + "".join(f"text {i},a\n" for i in range(20)),
        "unseen.csv": "text,label\nx,a\ny,c\nz,c\n",
        "mixed.csv": "text,label\n" + "x,1\ny,2\nz,good\n" * 20,
        "no_labels.csv": "text,label\nx,\ny,\n",
        "empty_texts.csv": "text,label\n,a\n ,b\n",
        "header_only.csv": "text,label\n",
        "empty.csv": "",
        "blank.csv": "\n\n\n",
        "all_broken.csv": "text,label\na,b,c\nd\n",
        "many_labels.csv": "text,label\n" + "".join(f"x,label {i}\n" for i in range(1500)),
        "tiny.csv": "text,label\nx,a\ny,b\n",
        "notes.docx": "hello",
        "noending": "text,label\nx,a\n",
        "twice.csv": "text,label,label\nx,a,b\n",
        "empty.jsonl": "",
        "list.jsonl": "[1]\n",
        "nested.jsonl": '{"text": {"a": 1}, "label": 1}\n',
        "unicode.csv": "text,label\n".encode("utf-16"),
        "header_quote.csv": '"text"x,label\na,b\n',
        "fake.parquet": "PAR1 not really PAR1",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    pq.write_table(pa.table({"text": [["a"], ["b"]], "label": [0, 1]}), tmp_path / "nested.parquet")
    (tmp_path / "GLUE" / "RTE").mkdir(parents=True)
    (tmp_path / "GLUE" / "RTE" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    (tmp_path / "folder.csv").mkdir()
    return tmp_path


CASES = [
    ({}, "No data was named"),
    ({"task": "rtee"}, "Did you mean 'rte'"),
    ({"task": "stsb"}, "regression"),
    ({"task": "rte"}, "Where is rte"),
    ({"task": "rte", "data_dir": "GLUE", "hub": True}, "not both"),
    ({"task": "rte", "data_dir": "nowhere"}, "does not exist"),
    ({"task": "rte", "data_dir": "train.csv"}, "is a file, not a folder"),
    ({"task": "rte", "data_dir": "GLUE"}, "dev.tsv is missing"),
    ({"task": "mrpc", "data_dir": "GLUE"}, "looked for MRPC/train.tsv.*The folder holds RTE"),
    ({"task": "rte", "data_dir": "GLUE", "text_column": "sentence1"}, "pair task, but only one text column"),
    ({"task": "sst2", "data_dir": "GLUE", "text_pair_column": "b"}, "single texts"),
    ({"task": "rte", "train": "train.csv", "text_column": "text"}, "pair task, but only one"),
    ({"task": "rte", "train": "train.csv"}, "Unknown column 'sentence1'"),
    ({"task": "sst2", "train": "train.csv", "text_column": "text"}, "'a' .30 rows, first row 0.*sst2 does not have"),
    ({"test": "train.csv"}, "needs a training file"),
    ({"train": "train.csv", "data_dir": "GLUE"}, "not both"),
    ({"train": "train.csv", "hub": True}, "not both"),
    ({"train": "trian.csv"}, "does not exist. Did you mean 'train.csv'"),
    ({"train": "nowhere/train.csv"}, "Nor does its folder"),
    ({"train": "x" * 300 + ".csv"}, "Could not look at"),
    ({"train": "folder.csv"}, "is a folder"),
    ({"train": "GLUE"}, "is a folder"),
    ({"train": "notes.docx"}, "ends in '.docx'; known are .csv"),
    ({"train": "noending"}, "has no ending"),
    ({"train": "empty.csv"}, "is empty"),
    ({"train": "empty.jsonl"}, "is empty"),
    ({"train": "blank.csv"}, "is empty"),
    ({"train": "header_only.csv"}, "no rows to read"),
    ({"train": "all_broken.csv"}, "2 were set aside"),
    ({"train": "train.csv", "text_column": "txt"}, "Unknown column 'txt'. Did you mean 'text'\\? Known: text, label"),
    ({"train": "train.csv", "label_column": "lable"}, "Did you mean 'label'"),
    ({"train": "train.csv", "text_pair_column": "text2"}, "Unknown column 'text2'"),
    ({"train": "train.csv", "text_column": "text", "text_pair_column": "text"}, "must differ"),
    ({"train": "twice.csv"}, "2 columns named 'label'"),
    ({"train": "one_class.csv"}, "one class only .'a'.; at least two"),
    ({"train": "mixed.csv"}, "mix numbers .'1', '2'. and names .'good'"),
    ({"train": "no_labels.csv"}, "No row of the train file .*no_labels.csv has a label"),
    ({"train": "empty_texts.csv"}, "Every text of the train file .*empty_texts.csv is empty"),
    ({"train": "many_labels.csv"}, "more than 1,000 different values"),
    ({"train": "tiny.csv"}, "too few to cut one off"),
    (
        {"train": "train.csv", "test": "unseen.csv"},
        "The test file .*unseen.csv has the label 'c' .2 rows, first row 1.*never",
    ),
    ({"train": "train.csv", "calibration": "unseen.csv"}, "The calibration file .*unseen.csv has the label 'c'"),
    ({"train": "train.csv", "test": "trian.csv"}, "does not exist"),
    ({"train": "train.csv", "test": "header_only.csv"}, "no rows to read in the test file"),
    ({"train": "train.csv", "max_train_rows": 0}, "max_train_rows is 0"),
    ({"train": "train.csv", "max_train_rows": 1}, "cannot hold the 2 classes"),
    ({"train": "train.csv", "max_eval_rows": -1}, "max_eval_rows is -1"),
    ({"train": "train.csv", "split_seed": -1}, "split_seed is -1"),
    ({"train": "list.jsonl"}, "line 1 is a JSON list"),
    ({"train": "nested.jsonl"}, "nested.jsonl: Column 'text' holds an object at line 1"),
    ({"train": "nested.parquet"}, "has type list"),
    ({"train": "fake.parquet"}, "not a whole Parquet file"),
    ({"train": "unicode.csv"}, "not UTF-8"),
    ({"train": "header_quote.csv"}, "quotes of the header"),
]


@pytest.mark.parametrize(("options", "message"), CASES, ids=[json.dumps(options)[:60] for options, _ in CASES])
def test_a_mistake_is_refused(folder, options, message):
    paths = {
        key: folder / value for key, value in options.items() if key in ("train", "calibration", "test", "data_dir")
    }
    with pytest.raises(EbmcalError, match=message):
        load_data(DataSource(**(options | paths)), folder / "cache")


def test_headers_of_all_files_are_checked_before_any_is_read(folder):
    (folder / "other.csv").write_text("words,label\nx,a\n")
    with pytest.raises(EbmcalError, match=r"other.csv: Unknown column 'text'"):
        load_data(DataSource(train=folder / "train.csv", test=folder / "other.csv"), folder / "cache")
    assert not (folder / "cache").exists()


def test_load_texts_refuses_alike(folder):
    for name, message in [("trian.csv", "Did you mean"), ("header_only.csv", "no rows"), ("folder.csv", "is a folder")]:
        with pytest.raises(EbmcalError, match=message):
            load_texts(folder / name, folder / "cache")
