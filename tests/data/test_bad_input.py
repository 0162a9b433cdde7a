"""Bad input: each mistake is refused before any work, with a message that says what is wrong and what to do."""

import json
import subprocess
import sys

import pytest

from ebmcal.data import DataConfig, load_task
from ebmcal.errors import EbmcalError

GOOD = "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(60))


@pytest.fixture
def folder(tmp_path):
    """A valid training file and many others that have one problem each."""
    files = {
        "train.csv": GOOD,
        "one_class.csv": "text,label\n" + "".join(f"text {i},a\n" for i in range(20)),
        "unseen.csv": "text,label\nx,a\ny,c\nz,c\n",
        "upper.csv": "text,label\nx,a\ny,B\n",
        "mixed.csv": "text,label\n" + "x,1\ny,2\nz,good\n" * 20,
        "no_labels.csv": "text,label\nx,\ny,\n",
        "empty_texts.csv": "text,label\n,a\n ,b\n",
        "header_only.csv": "text,label\n",
        "empty.csv": "",
        "blank.csv": "\n\n\n",
        "all_broken.csv": "text,label\na,b,c\nd\n",
        "many_labels.csv": "text,label\n" + "".join(f"x,label {i}\n" for i in range(1500)),
        "tiny.csv": "text,label\nx,a\ny,b\n",
        "same.csv": "text,label\n" + "".join(f"the same,{'ab'[i % 2]}\n" for i in range(300)),
        "notes.docx": "hello",
        "nosuffix": "text,label\nx,a\n",
        "columns.csv": "id,words,label\n1,b,c\n",
        "txt.csv": GOOD.replace("text,label", "txt,label"),
        "upper_case.csv": "TEXT,LABEL\nx,a\n",
        "lable.csv": "text,lable\nx,a\n",
        "semicolons.csv": "text;Labels\nx;a\n",
        "empty.jsonl": "",
        "blank.jsonl": "\n \n",
        "header_quote.csv": '"text"x,label\na,b\n',
        "parquet.csv": "PAR1 not really a CSV",
        "packed.parquet.gz": "x",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "GLUE" / "RTE").mkdir(parents=True)
    (tmp_path / "GLUE" / "RTE" / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    (tmp_path / "folder.csv").mkdir()
    return tmp_path


CASES = [
    ({}, "No data given"),
    ({"task": "rte"}, "Where is rte.*RTE/train.tsv, or hub"),
    ({"task": "clinc150"}, "Where is clinc150.*intents/clinc150_train.csv.$"),
    ({"task": "clinc150", "hub": True}, "not available from the hub"),
    ({"task": "rte", "data_dir": "GLUE", "hub": True}, "not both"),
    ({"task": "rte", "data_dir": "nowhere"}, "does not exist"),
    ({"task": "rte", "data_dir": "train.csv"}, "is a file; expected a directory"),
    ({"task": "rte", "data_dir": "GLUE"}, "dev.tsv is missing"),
    ({"task": "mrpc", "data_dir": "GLUE"}, "expected MRPC/train.tsv; found RTE"),
    ({"train": "train.csv", "data_dir": "GLUE"}, "data_dir: only for built-in tasks, but train is set"),
    ({"train": "train.csv", "hub": True}, "hub: only for built-in tasks"),
    ({"task": "rte", "data_dir": "GLUE", "text_column": "a"}, "text_column: only for your own files, but task is rte"),
    ({"task": "rte", "data_dir": "GLUE", "calibration": "train.csv"}, "calibration: only for your own files"),
    ({"train": "trian.csv"}, "does not exist. Did you mean 'train.csv'"),
    ({"train": "nowhere/train.csv"}, "Its directory is empty or missing"),
    ({"train": "x" * 300 + ".csv"}, "cannot be read"),
    ({"train": "folder.csv"}, "is a directory"),
    ({"train": "GLUE"}, "is a directory"),
    ({"train": "notes.docx"}, "ends in '.docx'; expected .csv"),
    ({"train": "nosuffix"}, "has no suffix"),
    ({"train": "packed.parquet.gz"}, "ends in '.gz'; expected .csv"),
    ({"train": "empty.csv"}, "is empty"),
    ({"train": "empty.jsonl"}, "is empty"),
    ({"train": "blank.csv"}, "is empty; expected a first line"),
    ({"train": "blank.jsonl"}, "is empty; expected one JSON object"),
    ({"train": "header_only.csv"}, "no rows to read"),
    ({"train": "all_broken.csv"}, "2 left out: too few fields, too many fields"),
    ({"train": "train.csv", "text_column": "txt"}, "Unknown column 'txt'. Did you mean 'text'.*Available: text, label"),
    ({"train": "train.csv", "label_column": "lable"}, "Did you mean 'label'.*with label_column"),
    ({"train": "train.csv", "text_pair_column": "text2"}, "Unknown column 'text2'"),
    ({"train": "train.csv", "text_column": "text", "text_pair_column": "text"}, "use two columns"),
    ({"train": "train.csv", "label_column": "text"}, "'text' was given twice, also as label_column"),
    ({"train": "train.csv", "id_column": "idd"}, "Unknown column 'idd'.*with id_column"),
    ({"train": "columns.csv"}, "Unknown column 'text'. Available: id, words, label. Name the right one with text_col"),
    ({"train": "txt.csv"}, "Unknown column 'text'. Did you mean 'txt'. Available: txt, label. Name the right one"),
    ({"train": "upper_case.csv"}, "Unknown column 'text'. Did you mean 'TEXT'"),
    ({"train": "lable.csv"}, "Unknown column 'label'. Did you mean 'lable'"),
    ({"train": "semicolons.csv"}, "Unknown column 'label'. Did you mean 'Labels'"),
    ({"train": "one_class.csv"}, "have the class 'a'; expected at least two"),
    ({"train": "mixed.csv"}, "mix numbers .'1', '2'. and names .'good'"),
    ({"train": "no_labels.csv"}, "train data .*no_labels.csv: No row has a label"),
    ({"train": "empty_texts.csv"}, "train data .*empty_texts.csv: All texts are empty"),
    ({"train": "many_labels.csv"}, "1,500 distinct values"),
    ({"train": "tiny.csv"}, "2 distinct texts, too few to split for 2 labels"),
    ({"train": "same.csv"}, "1 distinct text, too few to split for 2 labels .copies of a text stay together"),
    (
        {"train": "train.csv", "test": "unseen.csv"},
        "test data .*unseen.csv: label 'c' .2 rows, first in line 3.: not in",
    ),
    ({"train": "train.csv", "calibration": "unseen.csv"}, "calibration data .*unseen.csv: label 'c'"),
    ({"train": "train.csv", "test": "upper.csv"}, "label 'B' .1 row, first in line 3.: .*Did you mean 'b'"),
    ({"train": "train.csv", "test": "trian.csv"}, "test data: .*does not exist"),
    ({"train": "train.csv", "test": "header_only.csv"}, "test data .*no rows to read"),
    ({"train": "train.csv", "max_train_rows": 1}, "1 row cannot hold 2 classes"),
    ({"train": "parquet.csv"}, "it looks like UTF-16 or a binary file"),
    ({"train": "header_quote.csv"}, "header line has unmatched quotes"),
]


@pytest.mark.parametrize(("options", "message"), CASES, ids=[json.dumps(options)[:60] for options, _ in CASES])
def test_a_mistake_is_refused(folder, options, message):
    files = ("train", "calibration", "test", "data_dir")
    paths = {key: folder / value for key, value in options.items() if key in files}
    with pytest.raises(EbmcalError, match=message):
        load_task(DataConfig(**(options | paths)), folder / "cache")


def test_all_headers_are_checked_before_any_file_is_read(folder):
    (folder / "other.csv").write_text("words,label\nx,a\n")
    with pytest.raises(EbmcalError, match=r"test data: .*other.csv: Unknown column 'text'"):
        load_task(DataConfig(train=folder / "train.csv", test=folder / "other.csv"), folder / "cache")
    assert not (folder / "cache").exists()


def test_pairs_and_single_texts_cannot_be_mixed(folder):
    pairs = ([(f"a {i}", "b") for i in range(20)], ["a", "b"] * 10)
    with pytest.raises(EbmcalError, match=r"Some of the data .* pairs"):
        load_task(DataConfig(train=pairs, test=folder / "train.csv"), folder / "cache")


def test_a_run_reports_bad_files_and_outputs_before_it_imports_torch_or_writes(folder):
    """In a fresh process: the message, whether torch was imported, whether the output directory exists."""
    (folder / "file").write_text("")
    code = """
import sys
from pathlib import Path
from ebmcal import storage
from ebmcal.cli import main
Path("busy").mkdir()
lock = storage.FileLock("busy/.lock")
lock.acquire()
for train, output in [("txt.csv", "run"), ("missing.csv", "run"), ("train.csv", "GLUE"), ("train.csv", "busy"),
                      ("train.csv", "file/run")]:
    try:
        main(["run", "--train", train, "--output", output])
    except SystemExit:
        print("torch" in sys.modules, Path("run").exists())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.stdout.splitlines() == ["False False"] * 5, done.stderr
    expected = ["'txt'", "missing.csv does not exist", "'GLUE' is not empty", "busy is in use", "file/run"]
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert all(words in line for words, line in zip(expected, errors, strict=True)), done.stderr
