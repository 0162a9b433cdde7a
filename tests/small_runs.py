"""Whole runs on a few rows of text and tiny models, and a reporter that keeps what it is told."""

import csv
import functools
import tempfile
from pathlib import Path

from ebmcal.config import load_config
from ebmcal.models.loading import LANGUAGE_MODELS
from ebmcal.progress import Reporter
from tiny_models import SENTENCES, save_language_model

LABELS = ("very bad", "bad", "fair", "good", "great")

#: Held-out noise texts of small runs.
HELD_OUT = 20


class Lines(Reporter):
    """Keeps what it is told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


class Small:
    """A noise LM of a few thousand weights, as if it were built in; made when it is first asked for."""

    gguf_file = None

    @staticmethod
    @functools.cache
    def path():
        return save_language_model(Path(tempfile.mkdtemp()) / "small")


def make_small(patch):
    """A noise LM `small` and little held-out noise."""
    patch.setitem(LANGUAGE_MODELS, "small", Small())
    patch.setattr("ebmcal.pipeline.run_noise.HELD_OUT", HELD_OUT)


def write_csv(path, rows, columns=("text", "label")):
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def own_rows(n=120):
    return [(f"{SENTENCES[i]} {'very ' * (i % 5)}so", LABELS[i % 5]) for i in range(n)]


def settings(files, encoder_folder, folder, **changes):
    given = {
        "train": files, "encoder": str(encoder_folder), "noise": "gaps:small", "methods": ["baseline", "hidden"],
        "steps": 6, "batch_size": 8, "noise_ratio": 2, "max_length": 32, "noise_lm_steps": 40, "noise_lm_batch_size": 8,
        "noise_lm_learning_rate": 2e-2, "noise_samples": 40, "posthoc": ["temperature"], "precision": "fp32",
        "eval_steps": 3, "output": folder / "run", "cache_dir": folder / "cache",
    }  # fmt: skip
    return load_config(None, given | changes)
