"""`ebmcal predict` that is killed with SIGKILL and called again: it goes on, and the bytes are the same."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from serving import save_classifier
from tiny_models import SENTENCES

N_ROWS, WAIT = 30_000, 300


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_job_that_is_killed_goes_on(tmp_path, suffix):
    folder = save_classifier(tmp_path / "model")
    (tmp_path / "in.csv").write_text(
        "id,text\n" + "".join(f'r{i},"{SENTENCES[i % len(SENTENCES)]} {i}"\n' for i in range(N_ROWS))
    )
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"

    def command(target):
        return [sys.executable, "-m", "ebmcal", "predict", str(folder), str(tmp_path / "in.csv"), "-o", str(target)]

    done, seen = tmp_path / f"out{suffix}.part" / "done.jsonl", []
    for _ in range(3):
        with subprocess.Popen(command(output), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            end = time.monotonic() + WAIT
            while len(lines(done)) < len(seen) + 3 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            assert process.poll() is None, "it ended before it could be killed"
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert not output.exists()
        assert lines(done)[: len(seen)] == seen, "what was done is kept"
        seen = lines(done)
        assert len(seen) >= 3
    result = subprocess.run(command(output), capture_output=True, text=True, check=True)
    assert f"{sum(1024 for _ in seen):,} were there already" in result.stdout
    subprocess.run(command(whole), capture_output=True, check=True)
    assert output.read_bytes() == whole.read_bytes()
    assert not done.parent.exists()


def lines(path):
    """The finished chunks; a line that is being written does not count."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
