"""Distances from training texts, against scikit-learn's; and how they come into every comparison."""

import numpy as np
import pytest

from ebmcal import evaluate
from ebmcal.judging import detect
from ebmcal.metrics.distances import DISTANCES, fit_knn, fit_mahalanobis
from ebmcal.predictions import Predictions

rng = np.random.default_rng(0)
LABELS = np.arange(120) % 3
TRAIN = rng.normal(size=(120, 8)) * np.arange(1, 9) + 5 * np.eye(8)[LABELS]
OTHERS = rng.normal(size=(30, 8)) * 6


def test_mahalanobis_is_that_of_scikit_learn():
    covariance = pytest.importorskip("sklearn.covariance")
    means = np.stack([TRAIN[c == LABELS].mean(axis=0) for c in range(3)])
    oas = covariance.OAS(assume_centered=True).fit(TRAIN - means[LABELS])
    want = np.min([oas.mahalanobis(OTHERS - mean) for mean in means], axis=0)
    np.testing.assert_allclose(fit_mahalanobis(TRAIN, LABELS)(OTHERS), want, rtol=1e-6)


def test_knn_is_that_of_scikit_learn():
    neighbors = pytest.importorskip("sklearn.neighbors")

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    found, _ = neighbors.NearestNeighbors(n_neighbors=10).fit(unit(TRAIN)).kneighbors(unit(OTHERS))
    np.testing.assert_allclose(fit_knn(TRAIN, LABELS)(OTHERS), found[:, -1], rtol=1e-6)


@pytest.mark.parametrize("name", DISTANCES)
def test_few_texts_and_many_features(name):
    distance = DISTANCES[name](rng.normal(size=(5, 40)).astype(np.float32), np.array([0, 1, 0, 1, 0]))
    found = distance(np.zeros((3, 40), dtype=np.float32))
    assert found.shape == (3,)
    assert np.isfinite(found).all()


def predictions(shift, n=60):
    logits = np.random.default_rng(shift).normal(size=(n, 2))
    distances = {"knn": np.arange(n) * 0.1 + shift, "knn_untouched": np.zeros(n)}
    return Predictions(np.zeros(n, dtype=int), ("a", "b"), logits=logits, distances=distances)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".npz"])
def test_files_keep_distances(suffix, tmp_path):
    predictions(3).write(tmp_path / f"p{suffix}")
    again = Predictions.read(tmp_path / f"p{suffix}")
    assert set(again.distances) == {"knn", "knn_untouched"}
    np.testing.assert_array_equal(again.rows(np.array([4])).distances["knn"], predictions(3).distances["knn"][[4]])
    assert Predictions([0], ("a", "b"), logits=[[0.0, 1.0]]).distances is None


def test_every_comparison_shows_who_wins():
    found = detect(predictions(0), predictions(100), "books")
    assert list(found) == [f"books by {kind}" for kind in ("energy", "max_prob", "entropy", "knn", "knn_untouched")]
    assert found["books by knn"]["auroc"] == 1.0
    assert found["books by knn_untouched"]["auroc"] == 0.5
    shown = str(evaluate({"mine": predictions(0)}, ood=predictions(100), metrics=["accuracy"], n_resamples=0).table())
    assert "knn untouched" in shown
    bare = Predictions(np.zeros(9, dtype=int), ("a", "b"), logits=np.zeros((9, 2)))
    assert not [what for what in detect(predictions(0), bare, "books") if "knn" in what]
