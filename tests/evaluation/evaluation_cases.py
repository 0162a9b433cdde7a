"""Predictions for the tests of the evaluation: calibrated logits with a known scale, splits of trials, label sets."""

import json

import numpy as np

from ebmcal import Predictions

NAMES = ("neg", "neu", "pos")
LABELS = ("food", "price")


def make_predictions(n=600, seed=0, scale=1.0, prefix="row", shift=0.0, energies=False, names=NAMES):
    """Logits that are calibrated at scale 1 and overconfident above."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, len(names))) * 1.5
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    logits = scale * logits + shift
    return Predictions(
        labels,
        names,
        logits=logits,
        ids=[f"{prefix}-{i}" for i in range(n)],
        energies=-np.log(np.exp(logits).sum(axis=1)) if energies else None,
    )


def make_split(scale, seed, draw=0, n=400):
    """The same labels for every model; `scale` above 1 is overconfident; each seed sees the texts slightly changed."""
    rng = np.random.default_rng(draw)
    true = rng.normal(0, 2, n)
    labels = (rng.random(n) < 1 / (1 + np.exp(-true))).astype(int)
    seen = scale * (true + np.random.default_rng([seed, draw]).normal(0, 0.3, n))
    return Predictions(
        labels, ("no", "yes"), logits=np.stack([0 * seen, seen], axis=1), ids=[f"{draw}-{i}" for i in range(n)]
    )


def write_multilabel(path, n=400, seed=0, scale=3.0, **changes):
    """Overconfident logits of two labels that may both apply; `changes` are applied to row 3."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 2)) * 1.5
    applies = rng.random((n, 2)) < 1 / (1 + np.exp(-logits))
    lines = [
        {"label": [x for x, there in zip(LABELS, row, strict=True) if there]}
        | {f"logit_{x}": scale * z for x, z in zip(LABELS, zs, strict=True)}
        for row, zs in zip(applies, logits, strict=True)
    ]
    lines[3] |= changes
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path, applies, scale * logits
