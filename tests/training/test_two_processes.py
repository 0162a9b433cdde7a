"""Real processes side by side: two on one run folder, and two runs that share a noise LM, noise and tokens."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.storage.locks import LOCK, locked
from full_disk import arguments, results_of, write_reviews

HERE = Path(__file__).parents[1]
START = "import sys, full_disk; from ebmcal.cli import main; full_disk.make_quick(); main(sys.argv[1:])"


def start(output, cache, encoder_folder, csv):
    command = [*arguments(cache.parent, str(encoder_folder), csv), "--output", str(output)]  # the last one counts
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    with open(f"{output}.said", "w") as said:
        return subprocess.Popen([sys.executable, "-c", START, *command], stdout=said, stderr=said, env=environment)


def wait_for(line, output, process):
    """Until a line is in the log of a run; fails when the process ends before, or after some minutes."""
    for _ in range(18000):
        if line in log_of(output):
            return
        assert process.poll() is None, Path(f"{output}.said").read_text()
        time.sleep(0.01)
    pytest.fail(f"{line!r} never came")


def log_of(output):
    return (output / "log.txt").read_text() if (output / "log.txt").exists() else ""


@pytest.fixture
def first_two(encoder_folder, tmp_path):
    """A run that is held while it makes the noise LM, and a second one that waits for it."""
    csv, cache = write_reviews(tmp_path / "reviews.csv"), tmp_path / "cache"
    outputs = [tmp_path / "first", tmp_path / "second"]
    processes = [start(outputs[0], cache, encoder_folder, csv)]
    try:
        wait_for("noise LM small: begun", outputs[0], processes[0])
        os.kill(processes[0].pid, signal.SIGSTOP)
        processes.append(start(outputs[1], cache, encoder_folder, csv))
        wait_for(f"noise LM: waits for process {processes[0].pid} on ", outputs[1], processes[1])
        yield processes, outputs
    finally:
        for process in processes:
            process.kill()
            process.wait()


def same_predictions(outputs):
    found = [{p.name: p.read_bytes() for p in output.rglob("*.parquet")} for output in outputs]
    return found[0] == found[1] and len(found[0]) > 0


def test_one_makes_the_noise_and_the_other_waits_and_uses_it(first_two):
    (first, second), outputs = first_two
    who = rf"first is in use by process {first.pid} on .*, since "
    with pytest.raises(EbmcalError, match=who), locked(outputs[0]):
        pass
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(120) == 0
    assert second.wait(120) == 0
    log = log_of(outputs[1])
    assert "texts are there already" in log
    assert "noise LM small: begun" not in log
    assert same_predictions(outputs)


@pytest.mark.slow
def test_when_the_one_that_makes_the_noise_is_killed_the_other_makes_it(first_two, tmp_path, encoder_folder):
    (first, second), outputs = first_two
    first.kill()
    assert second.wait(120) == 0
    assert "noise LM small: begun" in log_of(outputs[1])
    made = results_of(tmp_path)
    again = start(outputs[0], tmp_path / "cache", encoder_folder, tmp_path / "reviews.csv")
    assert again.wait(120) == 0
    assert made == results_of(tmp_path)
    assert same_predictions(outputs)
    assert not list(tmp_path.rglob(".*.part"))
    assert (outputs[0] / LOCK).exists()
