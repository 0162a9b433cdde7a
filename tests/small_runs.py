"""Small data and settings for whole runs with tiny models."""

import csv

from tiny_models import SENTENCES

LABELS = ("bad", "fair", "good")


def rows(n=120):
    """Texts whose label can be read off their last words."""
    return [(f"{SENTENCES[i % len(SENTENCES)]} {'very ' * (i % 3)}so {i}", LABELS[i % 3]) for i in range(n)]


def write_csv(path, data=None, columns=("text", "label")):
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(rows() if data is None else data)
    return path


def small_settings(encoder_dir, **changes):
    """Arguments of `ebmcal.run` for a run of seconds."""
    settings = {"steps": 6, "eval_steps": 3, "posthoc": ["temperature"], "precision": "fp32", "max_length": 32}
    return {"encoder": str(encoder_dir), "batch_size": 8, "settings": settings, "progress": False} | changes
