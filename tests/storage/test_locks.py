"""One process at a time on a folder."""

import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.storage.locks import LOCK, locked

HOLD = "import sys; from pathlib import Path; from ebmcal.storage.locks import locked\n"
HOLD += "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_the_second_is_told_who_holds_it(holder, tmp_path):
    with pytest.raises(EbmcalError) as caught, locked(tmp_path):
        pass
    who = rf"in use by process {holder.pid} on {socket.gethostname()}, since \d{{4}}-\d\d-\d\d \d\d:\d\d UTC"
    assert re.search(who, str(caught.value))
    assert "Wait for it, or choose another folder" in str(caught.value)


def test_a_process_that_was_killed_holds_nothing(holder, tmp_path):
    holder.kill()
    holder.wait()
    with locked(tmp_path):
        assert f"process {os.getpid()} on {socket.gethostname()}, since " in (tmp_path / LOCK).read_text()


def test_waiting_is_said_once_and_ends(holder, tmp_path):
    told = []
    threading.Timer(0.4, lambda: holder.stdin.close()).start()
    start = time.monotonic()
    with locked(tmp_path, waiting=told.append, poll=0.02):
        assert time.monotonic() - start > 0.2
    assert len(told) == 1
    assert told[0].startswith(f"process {holder.pid} on {socket.gethostname()}, since ")


def test_a_lock_can_be_taken_again(tmp_path):
    for _ in range(2):
        with locked(tmp_path / "new"):
            pass
    with pytest.raises(KeyError), locked(tmp_path / "new"):
        raise KeyError
    with locked(tmp_path / "new"):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EbmcalError, match=r"Could not write in .*file"), locked(tmp_path / "file"):
        pass


def _count(folder, n, barrier):
    barrier.wait()
    for _ in range(n):
        with locked(folder, waiting=lambda _: None, poll=0.001):
            value = int((folder / "n").read_text())
            time.sleep(0.001)
            (folder / "n").write_text(str(value + 1))


def test_two_processes_never_hold_it_together(tmp_path):
    (tmp_path / "n").write_text("0")
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_count, args=(tmp_path, 20, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "n").read_text() == "40"
