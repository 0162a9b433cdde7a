"""Prediction files as people have them: separators, rounding, BOMs, pipes, unequal columns."""

import io
import json
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from ebmcal import EbmcalError, Predictions
from ebmcal.predictions.files import _from_arrow

PROBS = [[0.93, 0.07], [0.4, 0.6]]


def check(predictions):
    assert predictions.label_names == ("ham", "spam")
    assert predictions.labels.tolist() == [0, 1]
    np.testing.assert_allclose(predictions.probs, PROBS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "content",
    [
        "label;prob_ham;prob_spam\nham;0.93;0.07\nspam;0.40;0.60\n",
        "label;prob_ham;prob_spam\nham;0,93;0,07\nspam;0,40;0,60\n",
        "label\tprob_ham\tprob_spam\nham\t0.93\t0.07\nspam\t0.40\t0.60\n",
        "label,prob_ham,prob_spam\r\nham,0.93,0.07\r\nspam,0.40,0.60\r\n",
    ],
)
def test_separators_and_byte_order_marks(content, encoding, tmp_path, monkeypatch):
    path = tmp_path / "p.csv"
    path.write_text(content, encoding=encoding, newline="")
    check(Predictions.read(path))
    check(Predictions.read(path.rename(tmp_path / "p.tsv")))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content.encode(encoding))))
    check(Predictions.read("-"))
    with pytest.raises(EbmcalError, match="Standard input is empty"):  # it has been read
        Predictions.read("-")


ROWS = [{"label": "ham", "prob_ham": 0.93, "prob_spam": 0.07}, {"label": "spam", "prob_ham": 0.4, "prob_spam": 0.6}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.json", json.dumps(ROWS)),
        ("p.json", json.dumps({"label": ["ham", "spam"], "prob_ham": [0.93, 0.4], "prob_spam": [0.07, 0.6]})),
        ("p.json", "\n".join(map(json.dumps, ROWS))),
        ("p.jsonl", "\n".join(map(json.dumps, ROWS))),
    ],
)
def test_json_with_and_without_a_byte_order_mark(name, content, encoding, tmp_path):
    (tmp_path / name).write_text(content, encoding=encoding)
    check(Predictions.read(tmp_path / name))


@pytest.mark.parametrize(
    "columns",
    [
        {"label": ["a", "b"], "prob_a": [1.0, 0.0], "prob_b": [0.0]},
        {"label": ["a"], "prob_a": [1.0, 0.0], "prob_b": [0.0, 1.0]},
        {"label": ["a", "b"], "prob_a": [1.0, 0.0], "prob_b": [0.0, 1.0], "energy": [1.0]},
    ],
)
def test_columns_of_unequal_length_are_named(columns, tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(columns))
    with pytest.raises(EbmcalError, match=r"columns differ in length: 'label' has \d rows? and '\w+' has \d"):
        Predictions.read(tmp_path / "p.json")


def test_a_quote_that_is_not_closed_is_refused(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('label,prob_a,prob_b,text\na,.5,.5,"un closed\nb,.4,.6,x\n')
    with pytest.raises(EbmcalError, match="a quote is not closed"):
        Predictions.read(path)
    path.write_text('label,prob_a,prob_b,text\na,.5,.5,a 5" screen\nb,.4,.6,"x\ny"\n')
    assert list(Predictions.read(path).texts) == ['a 5" screen', "x\ny"]


def test_rounded_probabilities(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prob_a,prob_b,prob_c\n" + "a,0.33,0.33,0.33\nb,0.1,0.5,0.4\n" * 10)
    with pytest.raises(EbmcalError, match=r"sums to 0.99.*--normalize"):
        Predictions.read(path)
    np.testing.assert_allclose(Predictions.read(path, normalize=True).probs.sum(axis=1), 1)
    path.write_text("label,prob_a,prob_b,prob_c\na,0.9,0.8,0.33\n")
    with pytest.raises(EbmcalError, match=r"sums to 2.03; rounding moves the sum of 3 classes by at most 0.03"):
        Predictions.read(path, normalize=True)


def test_numbers_as_labels_of_named_classes_are_explained_or_refused(tmp_path):
    """0 may be the first column or the first name: if these are the same there is a warning, else an error."""
    path = tmp_path / "p.csv"
    path.write_text("label,logit_no,logit_yes\n0,2,-2\n1,-2,2\n")
    with pytest.warns(UserWarning, match="read as 0 = no, 1 = yes"):
        assert Predictions.read(path).labels.tolist() == [0, 1]
    path.write_text("label,logit_yes,logit_no\n1,2,-2\n0,-2,2\n")
    with pytest.raises(EbmcalError, match=r"0 may be 'yes', the first column, or 'no'.*Write the names"):
        Predictions.read(path)


def test_a_file_without_labels_is_read_if_that_is_allowed(tmp_path):
    (tmp_path / "p.csv").write_text("prob_a,prob_b\n0.5,0.5\n")
    with pytest.raises(EbmcalError, match="no column 'label'"):
        Predictions.read(tmp_path / "p.csv")
    assert Predictions.read(tmp_path / "p.csv", labels_required=False).labels.tolist() == [-1]


def test_error_rows_of_predict_are_dropped_with_a_warning(tmp_path):
    (tmp_path / "p.csv").write_text("label,prob_a,prob_b,error\na,1,0,\n,,,line 2: empty\n")
    with pytest.warns(UserWarning, match="1 row has an error and is left out"):
        assert Predictions.read(tmp_path / "p.csv").n_rows == 1
    (tmp_path / "p.csv").write_text("label,prob_a,prob_b,error\n,,,line 2: empty\n")
    with pytest.raises(EbmcalError, match="only error rows; the first: line 2: empty"):
        Predictions.read(tmp_path / "p.csv")


def test_forty_thousand_classes_are_read_quickly(tmp_path):
    names = [f"c{i}" for i in range(40_000)]
    content = {"label": ["c7", "c8"], **{f"logit_{name}": [0.0, 1.0] for name in names}}
    (tmp_path / "p.json").write_text(json.dumps(content))
    start = time.process_time()
    p = Predictions.read(tmp_path / "p.json", label_names=names[::-1])
    assert p.predicted_labels.tolist() == ["c39999", "c39999"]
    assert p.labels.tolist() == [39_992, 39_991]
    (tmp_path / "p.json").write_text(json.dumps(content | {"label": ["c7", "x" * 1000]}))
    with pytest.raises(EbmcalError, match=r"row 1 \(counting from 0\), column 'label': Unknown class 'x+") as error:
        Predictions.read(tmp_path / "p.json")
    assert len(str(error.value)) < 1000
    repeated = [f"prob_{name}" for name in names] + ["x", "x"]
    with pytest.raises(EbmcalError, match="the column 'x' more than once"):
        _from_arrow(tmp_path, pa.table([pa.array([1])] * len(repeated), names=repeated))
    assert time.process_time() - start < 15  # quadratic checks take a minute


def test_a_class_column_that_the_file_does_not_declare_is_refused(tmp_path):
    import pyarrow.parquet as pq

    p = Predictions([0, 1], ("a", "b"), probs=[[1, 0], [0, 1]])
    p.write(tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet")
    pq.write_table(table.append_column("prob_c", pa.array([0.0, 0.0])), tmp_path / "p.parquet")
    with pytest.raises(EbmcalError, match="'prob_c' is not one of the classes a, b"):
        Predictions.read(tmp_path / "p.parquet")
