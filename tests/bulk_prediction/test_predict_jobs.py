"""Interrupted jobs: they resume with the same bytes, and never with rows of another input or a damaged chunk."""

import io
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from prediction_helpers import N_ROWS, TEXTS, read, save_model, working_directories

import ebmcal
from ebmcal import EbmcalError, predict_file
from ebmcal.bulk_prediction.rows import CHUNK_ROWS
from ebmcal.modeling.classifier import Predictor

SUFFIXES = [".csv", ".jsonl", ".parquet"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("ebmcal.bulk_prediction.rows.CHUNK_ROWS", 12)


@pytest.fixture
def calls(monkeypatch):
    """The number of texts of each call of the predictor; the fourth call is interrupted."""
    found, original = [], Predictor.predict_tokens

    def predict_tokens(self, tokens, **options):
        found.append(len(tokens))
        if len(found) == 4:
            raise KeyboardInterrupt
        return original(self, tokens, **options)

    monkeypatch.setattr(Predictor, "predict_tokens", predict_tokens)
    return found


def feed(monkeypatch, lines):
    content = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": content}))


def interrupt(*arguments, **options):
    with pytest.raises(KeyboardInterrupt):
        predict_file(*arguments, **options)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_resumed_job_writes_the_same_bytes(suffix, table, model, calls):
    output = table / f"out{suffix}"
    interrupt(model, table / "new.csv", output)
    assert not output.exists()
    (directory,) = working_directories(table)
    (directory / "000002.json").write_text('{"rows": 1')  # killed while writing the next chunk
    (table / f".out{suffix}.0123456789ab.tmp").write_text("half")  # or while joining them
    done = predict_file(model, table / "new.csv", output)
    assert calls[4:] == [1, 12, 12, 2]  # a sample text, then what was left
    assert (done.n_rows, done.n_reused) == (N_ROWS, 24)
    predict_file(model, table / "new.csv", table / f"whole{suffix}")
    assert output.read_bytes() == (table / f"whole{suffix}").read_bytes()
    assert not working_directories(table)
    assert not list(table.glob(".*.tmp"))


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_chunk_is_computed_again(damage, table, model, calls):
    interrupt(model, table / "new.csv", table / "out.csv")
    (directory,) = working_directories(table)
    chunk = directory / "000000.csv"
    lines = chunk.read_text().splitlines(keepends=True)
    if damage == "missing":
        chunk.unlink()
    else:
        chunk.write_text("".join(lines[:5] if damage == "truncated" else [*lines[1:], lines[0]]))
    done = predict_file(model, table / "new.csv", table / "out.csv")
    assert (done.n_rows, done.n_reused) == (N_ROWS, 12)
    assert [row["key"] for row in read(table / "out.csv")] == [f"k{i}" for i in range(N_ROWS)]


def test_standard_input_resumes_only_with_the_same_rows(tmp_path, model, calls, monkeypatch):
    feed(monkeypatch, TEXTS)
    interrupt(model, "-", tmp_path / "out.jsonl")
    others = [*TEXTS[:12], *reversed(TEXTS[12:])]
    feed(monkeypatch, others)
    done = predict_file(model, "-", tmp_path / "out.jsonl")
    assert done.n_reused == 12  # the first chunk is the same
    assert [row["text"] for row in read(tmp_path / "out.jsonl")] == others
    expected = model.predict(others).energies
    assert [row["energy"] for row in read(tmp_path / "out.jsonl")] == pytest.approx(expected.tolist(), abs=1e-5)


def test_other_settings_start_from_the_beginning(table, model, calls):
    interrupt(model, table / "new.csv", table / "out.csv")
    done = predict_file(model, table / "new.csv", table / "out.csv", calibrated=False)
    assert done.n_reused == 0
    assert "logit_bad" in (table / "out.csv").read_text()
    assert not working_directories(table)


def test_the_users_directories_are_not_touched(table, model):
    for name in ("out.csv.part", ".out.csv.ebmcal"):
        (table / name).mkdir()
        (table / name / "precious.txt").write_text("mine")
    with pytest.raises(EbmcalError, match="not a working directory of ebmcal predict"):
        predict_file(model, table / "new.csv", table / "out.csv")
    (table / ".x.csv.ebmcal").write_text("mine")
    with pytest.raises(EbmcalError, match=r"Could not write .*x\.csv\.ebmcal: File exists"):
        predict_file(model, table / "new.csv", table / "x.csv")
    assert (table / ".x.csv.ebmcal").read_text() == "mine"
    (table / ".out.csv.ebmcal").rename(table / "mine")
    predict_file(model, table / "new.csv", table / "out.csv")
    assert {path.parent.name for path in table.glob("*/precious.txt")} == {"out.csv.part", "mine"}


def test_another_process_may_not_work_on_the_same_job(table, model, calls):
    from ebmcal.storage import locked

    interrupt(model, table / "new.csv", table / "out.csv")
    (directory,) = working_directories(table)
    with locked(directory), pytest.raises(EbmcalError, match="in use by process"):
        predict_file(model, table / "new.csv", table / "out.csv")


def test_an_output_that_appears_meanwhile_is_kept(table, model, monkeypatch):
    original = Predictor.predict_tokens

    def predict_tokens(self, tokens, **options):
        (table / "out.csv").write_text("mine")
        return original(self, tokens, **options)

    monkeypatch.setattr(Predictor, "predict_tokens", predict_tokens)
    with pytest.raises(EbmcalError, match="created by another process"):
        predict_file(model, table / "new.csv", table / "out.csv")
    assert (table / "out.csv").read_text() == "mine"


def test_strict_also_stops_at_errors_of_reused_chunks(table, model, calls):
    (table / "bad.csv").write_text('text\n""\n' + "".join(f"{text}\n" for text in TEXTS))
    interrupt(model, table / "bad.csv", table / "out.csv")
    with pytest.raises(EbmcalError, match="line 2: 'text' is empty"):
        predict_file(model, table / "bad.csv", table / "out.csv", strict=True)


def run_limited(command, limit):
    """Run a command that may write files of at most `limit` bytes, as on a full disk."""

    def set_limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(command, capture_output=True, text=True, preexec_fn=set_limit)


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_job_resumes(table, folder):
    command = [sys.executable, "-m", "ebmcal", "predict", folder, table / "new.csv", "-o", table / "out.csv"]
    failed = run_limited(command, 2000)
    assert failed.returncode == 1, failed.stderr
    assert "Could not write" in failed.stderr
    assert "Traceback" not in failed.stderr
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(read(table / "out.csv")) == N_ROWS


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_job_killed_twice_writes_the_same_bytes(tmp_path, suffix, monkeypatch):
    folder, n_rows, output = save_model(tmp_path / "model"), 12_000, tmp_path / f"out{suffix}"
    rows = "".join(f'r{i},"{TEXTS[i % N_ROWS]} {i}"\n' for i in range(n_rows))
    (tmp_path / "in.csv").write_text("id,text\n" + rows)
    command = [sys.executable, "-m", "ebmcal", "predict", folder, tmp_path / "in.csv", "-o", output]
    n_done = 0
    for _ in range(2):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            end = time.monotonic() + 300
            while n_finished(tmp_path) < n_done + 2 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            assert process.poll() is None, "it ended before it could be killed"
            os.kill(process.pid, signal.SIGKILL)
        assert not output.exists()
        assert n_finished(tmp_path) >= n_done + 2
        n_done = n_finished(tmp_path)
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{CHUNK_ROWS * n_done:,} already done" in result.stdout
    assert not working_directories(tmp_path)
    monkeypatch.setattr("ebmcal.bulk_prediction.rows.CHUNK_ROWS", CHUNK_ROWS)
    predict_file(ebmcal.load(folder), tmp_path / "in.csv", tmp_path / f"whole{suffix}")
    assert output.read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def n_finished(directory):
    """Records are renamed into place, so those that exist are complete."""
    return sum(len(list(place.glob("0*.json"))) for place in working_directories(directory))


def test_a_job_in_another_precision_reuses_nothing(folder, table, model, calls):
    output = table / "out.csv"
    interrupt(model, table / "new.csv", output)
    assert predict_file(ebmcal.load(folder, precision="bf16"), table / "new.csv", output).n_reused == 0
