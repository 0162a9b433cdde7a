"""How far a text is from training texts, in the features of an encoder: the strong rivals of the energy.

`mahalanobis` is the squared distance to the nearest class mean under one covariance (Lee et al. 2018), `knn` the
distance to the tenth-nearest training text on the unit sphere (Sun et al. 2022). High = far.
"""

from collections.abc import Callable

import numpy as np

NEIGHBOURS = 10
_BLOCK = 512  # rows at a time

Distance = Callable[[np.ndarray], np.ndarray]  # features [n, H] → distances [n]


def fit_mahalanobis(features: np.ndarray, labels: np.ndarray) -> Distance:
    """Distances to the means of the classes of these training texts [n, H], [n].

    >>> distance = fit_mahalanobis(np.array([[0.0, 1], [0, -1], [4, 1], [4, -1]]), np.array([0, 0, 1, 1]))
    >>> distance(np.array([[0.0, 0], [2, 0]])).round(1).tolist()
    [0.0, 10.0]
    """
    x = features.astype(np.float64)
    classes = np.unique(labels)
    means = np.stack([x[labels == c].mean(axis=0) for c in classes])  # [C, H]
    centred = x - means[np.searchsorted(classes, labels)]
    root = np.linalg.cholesky(np.linalg.inv(_covariance(centred)))  # [H, H]
    places = means @ root

    def distance(others: np.ndarray) -> np.ndarray:
        rows = others.astype(np.float64) @ root
        return np.min([((rows - place) ** 2).sum(axis=1) for place in places], axis=0)

    return distance


def fit_knn(features: np.ndarray, labels: np.ndarray) -> Distance:
    """Distances to the tenth-nearest of these training texts [n, H]; labels are not looked at.

    >>> distance = fit_knn(np.array([[1.0, 0.0]] * 10), np.zeros(10))
    >>> distance(np.array([[3.0, 0.0], [0.0, 2.0]])).round(3).tolist()
    [0.0, 1.414]
    """
    known = _unit(features)
    k = min(NEIGHBOURS, len(known))

    def distance(others: np.ndarray) -> np.ndarray:
        found = np.empty(len(others))
        for start in range(0, len(others), _BLOCK):
            part = slice(start, start + _BLOCK)
            cosines = _unit(others[part]) @ known.T
            found[part] = np.partition(cosines, -k, axis=1)[:, -k]
        return np.sqrt(np.maximum(2.0 - 2.0 * found, 0.0))

    return distance


#: Training features and labels → a distance.
DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], Distance]] = {"mahalanobis": fit_mahalanobis, "knn": fit_knn}


def _unit(features: np.ndarray) -> np.ndarray:
    x = features.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _covariance(centred: np.ndarray) -> np.ndarray:
    """Covariance [H, H], shrunk to a multiple of the identity as far as few rows ask for (OAS, Chen et al. 2010)."""
    n, h = centred.shape
    s = centred.T @ centred / n
    spread, squares = np.trace(s) / h, float((s * s).mean())
    share = 1.0 if squares <= spread**2 / h else (squares + spread**2) / ((n + 1.0) * (squares - spread**2 / h))
    share = min(share, 1.0)
    return (1.0 - share) * s + (share * spread + 1e-9) * np.eye(h)
