"""The precision of a training: what the CPU says of itself is tried before it is believed."""

import signal
import threading

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.training import running
from ebmcal.training.callbacks import StopOnSignal


def test_the_trial_runs_bfloat16_and_is_kept_for_other_processes(monkeypatch):
    monkeypatch.delenv(running.BF16_KNOWN)
    gain = running.bf16_gain()
    assert gain > 0
    assert float(running.os.environ[running.BF16_KNOWN]) == gain


def test_a_trial_that_dies_means_float32(monkeypatch):
    monkeypatch.delenv(running.BF16_KNOWN)
    monkeypatch.setattr(running, "BF16_TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(running.torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert running.bf16_gain() == 0
    assert not running.uses_bf16("auto")
    with pytest.raises(EbmcalError, match="--precision fp32"):
        running.uses_bf16("bf16")


@pytest.mark.parametrize(("gain", "taken"), [("1.1", False), ("3.0", True)])
def test_auto_takes_bfloat16_where_it_is_quicker(monkeypatch, gain, taken):
    monkeypatch.setenv(running.BF16_KNOWN, gain)
    monkeypatch.setattr(running.torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert running.uses_bf16("auto") == taken
    assert not running.uses_bf16("fp32")
    assert running.uses_bf16("bf16")


def test_outside_of_the_main_thread_signals_are_left_alone():
    """Python lets the main thread alone set handlers: a server or a notebook may train in another one."""
    before, errors = signal.getsignal(signal.SIGINT), []

    def work():
        try:
            with StopOnSignal() as stopper:
                assert not stopper.stopped
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert signal.getsignal(signal.SIGINT) is before
