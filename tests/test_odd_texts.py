"""Odd texts from file to report: very long, NUL, BOM, mixed line ends, odd Unicode, tabs, quotes, tags."""

import csv
import io
import json
import re
from functools import partial

import pytest

from ebmcal.judging import Measures, judge_run
from ebmcal.pipeline import stages as pipeline
from ebmcal.pipeline.stages import read_document, run
from ebmcal.predictions import Predictions
from ebmcal.report import write_evaluation_report
from ebmcal.runfolder import Cell
from small_runs import Lines, make_small, own_rows, settings

SCRIPT = "<script>alert(1)</script>"
ODD = [
    SCRIPT + " <img src=x onerror=alert(2)>",
    "long " * 20_000,
    "x" * 100_000,
    "a NUL \0 inside",
    "\ufeffa BOM inside",
    "two\r\nlines\rand\nmore",
    "\u202eright to left\u202c and \u200f marks \u200b\u2028\u2029",
    "e\u0301" * 50 + " z\u0335\u0336\u0337\u0338",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff \ufffe",
    "tab\there, \"quotes\", 'more', {{ braces }} & &amp; %s \\n",
    "=HYPERLINK(1)",
    " ",
]


def rows_with_labels():
    odd = [(text, label) for text in ODD for label in ("bad", "good")]
    return [(text, "good" if i % 2 else "bad") for i, (text, _) in enumerate(own_rows(60))] + odd


def as_csv(path, delimiter):
    """With a BOM, and line ends of all kinds between the records."""
    ends, written = ("\r\n", "\n", "\r"), b"\xef\xbb\xbf"
    for i, row in enumerate([("text", "label"), *rows_with_labels()]):
        line = io.StringIO()
        csv.writer(line, delimiter=delimiter, lineterminator=ends[i % 3]).writerow(row)
        written += line.getvalue().encode()
    path.write_bytes(written + b"not \xff\xfe UTF-8" + delimiter.encode() + b"good\n")
    return path


def as_jsonl(path):
    """Escaped throughout, with lone surrogates that no UTF-8 file could hold."""
    rows = [*rows_with_labels(), ("a lone \ud800 surrogate \udfff", "good")]
    path.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    return path


@pytest.mark.parametrize("noise", ["gaps:small", "splice, far, splice:middle"])
def test_odd_texts_from_file_to_report(noise, encoder_folder, tmp_path, monkeypatch):
    make_small(monkeypatch)
    monkeypatch.setattr(pipeline, "judge_run", partial(judge_run, how=Measures(n_resamples=5)))
    files = {"calibration": as_csv(tmp_path / "c.tsv", "\t"), "test": as_jsonl(tmp_path / "t.jsonl")}
    train, lines = as_csv(tmp_path / "train.csv", ","), Lines()
    config = settings(train, encoder_folder, tmp_path, methods=["hidden"], noise=noise, **files)
    folder = run(config, lines)
    n_rows = len(rows_with_labels()) + 1
    audit = read_document(folder)["data"]["files"]
    for name, part in audit.items():
        assert part["rows"] == n_rows, name  # no row was lost or glued to another
        assert part["set_aside"] == {}
        assert part["cleaned"]["invalid UTF-8 replaced"]["count"] == 1
        assert part["cleaned"]["NUL characters turned to spaces"]["count"] >= 2
    test = Predictions.read(folder.predictions(Cell("hidden", 1), "test"))
    cleaned = [text.replace("\0", " ") for text in ODD]
    assert set(cleaned) <= set(test.texts)
    assert "a lone \ufffd surrogate \ufffd" in test.texts
    for line in lines.lines:
        assert "\0" not in line
    page = folder.report.read_text(encoding="utf-8")
    ours = re.compile(r"<script>\"use strict\".*?</script>", re.S)
    rest = ours.sub("", page)
    assert len(ours.findall(page)) == 1
    assert "<script" not in rest
    assert "<img src=x" not in rest


@pytest.mark.parametrize("text", [SCRIPT, '"><svg onload=alert(1)>', "</script><script>alert(3)</script>"])
def test_labels_and_names_are_shown_as_text(text, tmp_path):
    """Class names, task names and notes reach the report too."""
    predictions = Predictions(
        labels=[0, 1] * 30, probs=[[0.6, 0.4], [0.3, 0.7]] * 30, label_names=(text, "other"), texts=[text] * 60
    )
    page = write_evaluation_report(tmp_path / "r.html", {text: predictions}, title=text).read_text()
    assert text not in re.sub(r"<script>\"use strict\".*?</script>", "", page, flags=re.S)
