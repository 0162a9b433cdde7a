"""`engine="ray"`: the output of one process, in order, whatever happens to the workers."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray", reason="the extra ray is not installed")

from prediction_helpers import N_ROWS, fitted_temperature, save_model, working_directories

import ebmcal
from ebmcal import EbmcalError, Ensemble, predict_file
from ebmcal.bulk_prediction.rows import OutputColumns

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Deadly(OutputColumns):
    """Kills the worker that reads the row `k20`: once, or always."""

    def text_and_label(self, row):
        marker = Path(os.environ["EBMCAL_TEST_MARKER"])
        if row.values.get("key") == "k20" and not marker.exists():
            if "once" in marker.name:
                marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().text_and_label(row)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("ebmcal.bulk_prediction.rows.CHUNK_ROWS", 6)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 by default: workers would starve on a busy machine


@pytest.fixture
def deadly(monkeypatch):
    """Workers get `Deadly` columns; they cannot import this module, so it is pickled by value."""
    import ray.cloudpickle

    arrange = OutputColumns.arrange.__func__
    monkeypatch.setattr(OutputColumns, "arrange", lambda *arguments: Deadly(**vars(arrange(OutputColumns, *arguments))))
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_the_output_is_that_of_one_process(table, model, tmp_path):
    """For an ensemble with dropout passes, an error row, and a calibrator that exists only in memory."""
    (table / "new.csv").write_text((table / "new.csv").read_text() + "k50,,none\n")
    members = [replace(model, calibrator=fitted_temperature(seed=5)), ebmcal.load(save_model(tmp_path / "plain"))]
    both = Ensemble(members, mc_dropout=2)
    predict_file(both, table / "new.csv", table / "local.csv")
    done = predict_file(both, table / "new.csv", table / "ray.csv", engine="ray", workers=2)
    assert (done.n_rows, done.n_errors) == (N_ROWS + 1, 1)
    assert (table / "ray.csv").read_bytes() == (table / "local.csv").read_bytes()


def test_a_killed_worker_changes_nothing(table, model, deadly, monkeypatch):
    marker = table / "killed-once"
    monkeypatch.setenv("EBMCAL_TEST_MARKER", str(marker))
    done = predict_file(model, table / "new.csv", table / "ray.csv", engine="ray", workers=2)
    assert marker.exists()
    assert done.n_rows == N_ROWS
    predict_file(model, table / "new.csv", table / "local.csv")
    assert (table / "ray.csv").read_bytes() == (table / "local.csv").read_bytes()


def test_a_chunk_that_kills_every_worker_ends_the_job_which_resumes(table, model, deadly, monkeypatch):
    monkeypatch.setenv("EBMCAL_TEST_MARKER", str(table / "always"))
    with pytest.raises(EbmcalError, match="Finished work is kept"):
        predict_file(model, table / "new.csv", table / "ray.csv", engine="ray", workers=1)
    assert working_directories(table)
    (table / "always").touch()
    done = predict_file(model, table / "new.csv", table / "ray.csv")  # in this process
    assert done.n_reused >= 6
    predict_file(model, table / "new.csv", table / "local.csv")
    assert (table / "ray.csv").read_bytes() == (table / "local.csv").read_bytes()
