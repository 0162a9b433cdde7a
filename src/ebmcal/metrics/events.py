"""Forecasts of events, the common ground of the binned metrics: what probability was said, and what came.

`top_label`: one event a row, "the predicted class is right", said with the row's confidence.
`class`: C events a row, "the label is y", said with P(y|x).
Blocks are class-major [k, rows] in float64, because reductions over classes are fast along axis 0 only.
"""

import functools
from typing import Literal

import numpy as np

Kind = Literal["top_label", "class"]
_LOOP_CLASSES = 16  # up to here a loop over classes beats numpy's argmax over short rows


def forecasts(labels: np.ndarray, probs: np.ndarray, part: slice, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Said probabilities [k, rows] and outcomes [k, rows] (bool) of a slice of rows; k is 1 or C.

    >>> forecasts(np.array([0]), np.array([[0.3, 0.7]]), slice(0, 1), "top_label")
    (array([[0.7]]), array([[False]]))
    """
    if kind == "top_label":
        confidence, predicted = top_label(probs[part])
        return confidence[None], (predicted == labels[part])[None]
    said = np.ascontiguousarray(probs[part].T)
    return said, labels[part] == np.arange(probs.shape[1])[:, None]


def top_label(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability of each row [n] and its class [n], the first one of a tie.

    >>> top_label(np.array([[0.5, 0.5], [0.1, 0.9]]))
    (array([0.5, 0.9]), array([0, 1], dtype=int8))
    """
    n_classes = probs.shape[1]
    if n_classes > _LOOP_CLASSES:
        predicted = probs.argmax(axis=1)
        return np.take_along_axis(probs, predicted[:, None], axis=1)[:, 0], predicted
    confidence = functools.reduce(np.maximum, probs.T)
    predicted = np.zeros(len(probs), dtype=np.int8)
    below = np.ones(len(probs), dtype=bool)  # is every class so far below the maximum?
    for column in probs.T[:-1]:
        below &= column < confidence
        predicted += below
    return confidence, predicted
