"""Reading logs: times of every kind, repeated files and rows, labels by id, windows."""

import datetime
import json
import shutil

import numpy as np
import pytest

from ebmcal import EbmcalError, Predictions
from ebmcal.monitoring.log import Log, add_labels, parse_times, read_log, windows

NEW_YEAR = 1767225600  # 2026-01-01 UTC


def write_csv(path, *rows, columns="id,time,energy,prob_no,prob_yes"):
    path.write_text("\n".join([columns, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-01-01 00:00:00.000", NEW_YEAR,
        float(NEW_YEAR), str(NEW_YEAR), NEW_YEAR * 10**3, NEW_YEAR * 10**6, NEW_YEAR * 10**9, f"{NEW_YEAR}000",
        datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), np.int64(NEW_YEAR),
    ],
)  # fmt: skip
def test_times(value):
    assert parse_times([value, "2026-01-01"]).tolist() == [NEW_YEAR] * 2


@pytest.mark.parametrize("value", ["yesterday", "", None, float("nan"), 1e40, [1], "2026-13-01", float("inf")])
def test_what_is_not_a_time_is_refused_with_its_row(value):
    with pytest.raises(EbmcalError, match=r"column 'time'\[1\] is"):
        parse_times([NEW_YEAR, value])


def test_files_are_joined_in_order_of_time(tmp_path):
    late = write_csv(tmp_path / "b.csv", "late,2026-01-02T00:00:00Z,0,0.5,0.5", "early,2026-01-01,0,0.5,0.5")
    between = write_csv(tmp_path / "a.csv", f"between,{NEW_YEAR + 43200}000,0,0.5,0.5")
    log = read_log([late, between])
    assert log.rows.ids.tolist() == ["early", "between", "late"]
    names = [name for name, _ in windows(log, every="12h")]
    assert names == ["2026-01-01 00:00", "2026-01-01 12:00", "2026-01-02 00:00"]


@pytest.mark.parametrize("how", ["same path", "other path", "copy"])
def test_a_file_given_twice_counts_once(tmp_path, how):
    path = write_csv(tmp_path / "log.csv", "0.5,0.5", "0.3,0.7", columns="prob_no,prob_yes")
    again = {"same path": path, "other path": tmp_path / "x" / ".." / "log.csv", "copy": tmp_path / "copy.csv"}[how]
    (tmp_path / "x").mkdir()
    if how == "copy":
        shutil.copy(path, again)
    with pytest.warns(UserWarning, match="counted once"):
        assert read_log([path, again]).rows.n_rows == 2


def test_a_prediction_that_is_in_two_files_counts_once(tmp_path):
    rows = [f"{i},{NEW_YEAR + i},0,0.5,0.5" for i in range(5)]
    first, longer = write_csv(tmp_path / "a.csv", *rows[:3]), write_csv(tmp_path / "b.csv", *rows)
    with pytest.warns(UserWarning, match="3 rows occur more than once"):
        assert read_log([first, longer]).rows.ids.tolist() == list("01234")
    other = write_csv(tmp_path / "c.csv", f"0,{NEW_YEAR + 9},0,0.5,0.5")  # the same id at another time
    assert read_log([first, other]).rows.n_rows == 4


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("a,yes\nb,no\na,no\n", "the id 'a' has two labels, 'yes' and 'no'"),
        ("a,maybe\n", "'maybe' is not one of no, yes"),
        ("nobody,yes\n", "none of its ids is in the log. Expected ids such as 'a'"),
        ("c,yes\n", "'c' occurs more than once in the log"),
        ("d,yes\n", "'d' has the label 'yes', but 'no' in the log"),
    ],
)
def test_contradictory_labels_are_refused(tmp_path, labels, message):
    log = Log(Predictions([-1, -1, -1, -1, 0], ("no", "yes"), probs=[[0.5, 0.5]] * 5, ids=list("abccd")))
    (tmp_path / "labels.csv").write_text("id,label\n" + labels)
    with pytest.raises(EbmcalError, match=message):
        add_labels(log, tmp_path / "labels.csv")


def test_labels_are_matched_by_id(tmp_path):
    log = Log(Predictions([-1, 1, -1], ("no", "yes"), probs=[[0.5, 0.5]] * 3, ids=["1", "2", "3"]))
    (tmp_path / "labels.jsonl").write_text(
        '{"id": 3, "label": "no"}\n{"id": 3, "label": "no"}\n{"id": 2, "label": null}\n'
    )
    assert add_labels(log, tmp_path / "labels.jsonl").rows.labels.tolist() == [-1, 1, 0]
    (tmp_path / "labels.csv").write_text("key,label\n1,no\n")
    with pytest.raises(EbmcalError, match="expected the columns id and label, got key, label"):
        add_labels(log, tmp_path / "labels.csv")


def test_a_file_without_predictions_is_refused_with_its_own_columns(tmp_path):
    path = write_csv(tmp_path / "texts.csv", "7,a text", columns="ticket_id,text")
    with pytest.raises(EbmcalError, match="the columns are 'ticket_id', 'text'.$"):
        read_log([path])


def test_error_rows_are_left_out_with_a_warning(tmp_path):
    columns = "id,predicted,prob_no,prob_yes,confidence,error"
    path = write_csv(tmp_path / "log.csv", "a,no,0.9,0.1,0.9,", "b,,,,,no text", "c,yes,0.2,0.8,0.8,", columns=columns)
    with pytest.warns(UserWarning, match="1 row has an error and is left out"):
        assert read_log([path]).rows.ids.tolist() == ["a", "c"]


def test_logged_decisions(tmp_path):
    rows = [
        {"prob_no": 0.5, "prob_yes": 0.5, "decision": d, "is_ood": o} for d, o in (("answer", False), ("abstain", True))
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log([path])
    assert (log.abstained.tolist(), log.is_ood.tolist()) == ([False, True], [False, True])
    path.write_text(json.dumps(rows[0]) + "\n" + '{"prob_no": 0.5, "prob_yes": 0.5}\n')  # another rule, or none
    log = read_log([path])
    assert (log.abstained, log.is_ood) == (None, None)
    path.write_text(json.dumps(rows[0] | {"is_ood": "perhaps"}))
    with pytest.raises(EbmcalError, match="column 'is_ood': expected true or false, got 'perhaps'"):
        read_log([path])


def test_rows_of_several_models_and_files_of_several_kinds_are_refused(tmp_path):
    columns = "time,weights,prob_no,prob_yes"
    mixed = write_csv(tmp_path / "a.csv", f"{NEW_YEAR},v,0.5,0.5", f"{NEW_YEAR},w,0.5,0.5", columns=columns)
    with pytest.raises(EbmcalError, match="from 2 models"):
        read_log([mixed])
    timed = write_csv(tmp_path / "b.csv", f"a,{NEW_YEAR},0,0.5,0.5")
    other = write_csv(tmp_path / "c.csv", "0.5,0.5", columns="prob_no,prob_yes")
    with pytest.raises(EbmcalError, match="some files have times and others do not"):
        read_log([timed, other])
    third = write_csv(tmp_path / "d.csv", f"{NEW_YEAR},0.5,0.5", columns="time,prob_no,prob_yes")
    with pytest.raises(EbmcalError, match="differ in their classes"):
        read_log([timed, third])
    with pytest.raises(EbmcalError, match="No log given"):
        read_log([])
