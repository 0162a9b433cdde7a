"""Shared by all tests: one thread, no network, a private cache, and tiny models on disk.

Nothing heavy is imported here: the tests of the evaluation half run without torch.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # tiny_models and other helpers

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines announce AMX and kill a process that uses it; tests train in float32 unless they ask for more.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("EBMCAL_BF16_SPEEDUP", "1")


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path_factory.getbasetemp() / "ebmcal-cache"))


@pytest.fixture
def command(capsys):
    """Run a command; returns what it prints, standard error first. Fails with another exit code than expected."""
    from ebmcal.cli import main

    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        printed = capsys.readouterr()
        assert (stop.value.code or 0) == code, printed.err
        return printed.err + printed.out

    return call


@pytest.fixture(scope="session")
def encoder_dir(tmp_path_factory):
    """A tiny BERT with its tokenizer, as a user's local model directory."""
    from tiny_models import save_encoder

    return save_encoder(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def wordpiece():
    from tiny_models import make_wordpiece

    return make_wordpiece()
