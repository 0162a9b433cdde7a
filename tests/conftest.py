"""What all tests share: one thread, no network, a cache of their own, and tiny models on disk.

Nothing heavy is imported here: the tests of the evaluation half run without torch.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Virtual machines announce AMX and end a process that uses it; float32 unless a test asks for bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("EBMCAL_BF16_GAIN", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def cache_of_the_test(tmp_path_factory, monkeypatch):
    """No test finds, or leaves, anything in the user's cache."""
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path_factory.getbasetemp() / "ebmcal-cache"))


@pytest.fixture(scope="session", autouse=True)
def cards_without_picture():
    """Drawing the picture of a model card takes longer than a small training; tests/report draws it."""
    from ebmcal.report import model_card

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_card, "_write_picture", lambda folder, paths: (folder / model_card.PICTURE).touch())
        yield


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory):
    """A tiny BERT with its tokenizer, as a user's local model folder."""
    from tiny_models import save_encoder

    return save_encoder(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def wordpiece():
    from tiny_models import make_wordpiece

    return make_wordpiece()
