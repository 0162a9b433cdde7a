"""Label issues against cleanlab and on flipped labels."""

import numpy as np
import pytest

from ebmcal import Predictions
from ebmcal.pipeline.cross_fit import find_label_issues


def noisy_predictions(n=400, n_classes=4, share=0.1, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_classes, size=n)
    logits = rng.normal(size=(n, n_classes)) + 3.0 * np.eye(n_classes)[truth]
    flipped = rng.random(n) < share
    labels = np.where(flipped, (truth + rng.integers(1, n_classes, size=n)) % n_classes, truth)
    return Predictions(labels, [f"c{i}" for i in range(n_classes)], logits=logits), flipped


def test_most_flipped_labels_are_found_with_their_true_label():
    p, flipped = noisy_predictions()
    issues = find_label_issues(p)
    found = issues["id"].astype(int).to_numpy()
    assert flipped[found].mean() > 0.7
    assert len(set(found) & set(np.flatnonzero(flipped))) > 0.7 * flipped.sum()
    assert (issues["score"].diff().dropna() <= 0).all()


def test_agrees_with_cleanlab():
    filtering = pytest.importorskip("cleanlab.filter")
    p, _ = noisy_predictions()
    theirs = filtering.find_label_issues(
        p.labels, p.probs, filter_by="confident_learning", return_indices_ranked_by=None
    )
    ours = np.zeros(p.n_rows, dtype=bool)
    ours[find_label_issues(p)["id"].astype(int)] = True
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.8


def test_clean_labels_have_no_issues():
    p = Predictions([0, 1, 0, 1], ("no", "yes"), probs=[[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.2, 0.8]])
    assert find_label_issues(p).empty
