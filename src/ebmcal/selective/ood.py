"""Out-of-distribution (OOD) texts, flagged by conformal p-values of a score; high = unlike the training data.

Scores are the energy, 1 − the largest probability, or a distance to training texts in the model's own features (mean
hidden states of its middle layer, from the same forward pass). `mahalanobis` is the squared distance to the nearest
class mean under a shared covariance (Lee et al. 2018), `knn` the distance to the tenth-nearest training text on the
unit sphere (Sun et al. 2022). The features of some training texts are stored with the rule, in half precision.
`combined` flags texts by two scores: distances detect texts about something else, the energy detects texts like the
training data that fit no class.

An in-distribution text is flagged with probability at most `ood`, the false-positive rate, whatever the scores. With
several scores the calibration texts are ranked by removing, in turns, the one with the highest value of each score. The
regions cut off this way are statistically equivalent blocks (Tukey 1947): a new text from the same distribution falls
into each of the n + 1 blocks with the same probability, as it takes each of the n + 1 ranks of a single score.
"""

import functools
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.calibration import persistence
from ebmcal.calibration.leakage import text_key
from ebmcal.errors import EbmcalError, require_extra, unknown_name
from ebmcal.metrics import ood_scores
from ebmcal.predictions import Predictions
from ebmcal.run_dir import predictions_of_model, read_card
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.model import Model

N_NEIGHBOURS = 10
#: Training texts of which features are stored, at most.
MAX_TEXTS = 2000
#: Calibration scores that a rule stores; of more, a random sample, which is as valid.
MAX_SCORES = 5000

Distance = Callable[[np.ndarray], np.ndarray]  # features [n, H] → distances [n]
Ranking = tuple[np.ndarray, ...]  # for each score, its values of the calibration texts removed by it, ascending

#: OOD scores and how they are called in a sentence.
OOD_SCORES = {
    "combined": "the distance to the nearest training texts or the energy",
    "knn": "the distance to the nearest training texts",
    "mahalanobis": "the Mahalanobis distance to the training texts",
    "energy": "the energy",
    "max_prob": "1 − the largest probability",
}

#: The scores that `combined` is made of, in the order in which they take turns.
COMBINED = ("knn", "energy")


def parts_of(name: str) -> tuple[str, ...]:
    """The scores that an OOD score is made of.

    >>> parts_of("combined"), parts_of("energy")
    (('knn', 'energy'), ('energy',))
    """
    return COMBINED if name == "combined" else (name,)


def distance_of(name: str) -> str | None:
    """The distance that an OOD score needs, if any."""
    return next((part for part in parts_of(name) if part in DISTANCES), None)


def fit_mahalanobis(features: np.ndarray, labels: np.ndarray) -> Distance:
    """Distances to the class means of training texts [n, H], [n].

    >>> distance = fit_mahalanobis(np.array([[0.0, 1], [0, -1], [4, 1], [4, -1]]), np.array([0, 0, 1, 1]))
    >>> distance(np.array([[0.0, 0], [2, 0]])).round(1).tolist()
    [0.0, 10.0]
    """
    from sklearn.covariance import oas

    if not (labels >= 0).any():
        raise EbmcalError("mahalanobis needs the labels of the training texts (column label). Or use knn.")
    x, y = features[labels >= 0].astype(np.float64), labels[labels >= 0]
    classes = np.unique(y)
    means = np.stack([x[y == c].mean(axis=0) for c in classes])  # [C, H]
    covariance = oas(x - means[np.searchsorted(classes, y)], assume_centered=True)[0] + 1e-9 * np.eye(x.shape[1])
    root = np.linalg.cholesky(np.linalg.inv(covariance))  # [H, H]
    centres = means @ root

    def distance(others: np.ndarray) -> np.ndarray:
        rows = others.astype(np.float64) @ root
        return np.min([((rows - centre) ** 2).sum(axis=1) for centre in centres], axis=0)

    return distance


def fit_knn(features: np.ndarray, labels: np.ndarray) -> Distance:
    """Distances to the tenth-nearest of training texts [n, H]; labels are not used.

    >>> distance = fit_knn(np.array([[1.0, 0.0]] * 10), np.zeros(10))
    >>> distance(np.array([[3.0, 0.0], [0.0, 2.0]])).round(3).tolist()
    [0.0, 1.414]
    """
    known = _unit(features)
    k = min(N_NEIGHBOURS, len(known))

    def distance(others: np.ndarray) -> np.ndarray:
        blocks = np.array_split(others, len(others) // 512 + 1)  # a few MB of cosines at a time
        found = [np.partition(_unit(block) @ known.T, -k, axis=1)[:, -k] for block in blocks]
        return np.sqrt(np.maximum(2.0 - 2.0 * np.concatenate(found), 0.0))

    return distance


def _unit(features: np.ndarray) -> np.ndarray:
    x = features.astype(np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


#: Training features and labels → a distance.
DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], Distance]] = {"knn": fit_knn, "mahalanobis": fit_mahalanobis}


def fit_distance(name: str, features: np.ndarray, labels: np.ndarray) -> Distance:
    """A distance by its name in `DISTANCES`, from training features [n, H] and labels [n] (−1 = unknown)."""
    if name not in DISTANCES:
        raise unknown_name("distance", name, DISTANCES)
    return DISTANCES[name](features, labels)


def rank_texts(scores: np.ndarray, ood: float, seed: int = 0) -> Ranking:
    """Rank calibration texts by their scores [k, n]; an error if they are too few for this rate.

    >>> [values.tolist() for values in rank_texts(np.array([[1.0, 2, 3, 4], [9, 5, 8, 7]]), ood=0.25)]
    [[3.0, 4.0], [5.0, 9.0]]
    """
    needed = math.ceil(1.0 / ood - 1e-9) - 1
    if scores.shape[1] < needed:
        raise EbmcalError(
            f"{scores.shape[1]:,} rows are too few to flag OOD texts at a false-positive rate of {ood:g}: at least "
            f"{needed:,} are needed. Pass more rows or a larger rate (--ood)."
        )
    if scores.shape[1] > MAX_SCORES:
        scores = np.random.default_rng(seed).choice(scores, MAX_SCORES, replace=False, axis=1)
    orders = [iter(np.argsort(-row, kind="stable")) for row in scores]
    found: list[list[float]] = [[] for _ in scores]
    removed: set[int] = set()
    for turn in range(scores.shape[1]):
        which = turn % len(orders)
        row = next(row for row in orders[which] if row not in removed)
        removed.add(row)
        found[which].append(scores[which, row])
    return tuple(np.array(values[::-1], dtype=np.float64) for values in found)


def p_values(scores: np.ndarray, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """For scores [k, n]: p [n], small = OOD, and which score [n] makes it small.

    With one score, p is the share of calibration texts, and of the text itself, with a score at least as high.

    >>> p_values(np.array([[0.5, 9.0]]), (np.array([0.0, 1.0, 2.0]),))[0]
    array([0.75, 0.25])
    """
    n_scores, n_texts = len(ranking), sum(map(len, ranking))
    as_high = [len(of) - np.searchsorted(of, row, side="left") for row, of in zip(scores, ranking, strict=True)]
    blocks = np.stack([n_scores * count + which for which, count in enumerate(as_high)])  # [k, n]; 0 is outermost
    return (np.minimum(blocks.min(axis=0), n_texts) + 1.0) / (n_texts + 1.0), blocks.argmin(axis=0)


def cut_offs(ranking: Ranking, ood: float) -> list[tuple[float, int]]:
    """For each score, the value above which p ≤ `ood`, and how many calibration texts were removed down to it.

    >>> cut_offs((np.arange(99.0),), 0.05)
    [(94.0, 5)]
    """
    n_blocks = math.floor((sum(map(len, ranking)) + 1) * ood + 1e-9)
    counts = [len(range(which, n_blocks, len(ranking))) for which in range(len(ranking))]
    return [
        (float(values[-count]) if count else math.inf, count) for values, count in zip(ranking, counts, strict=True)
    ]


def energies_of(predictions: Predictions) -> np.ndarray:
    """Energies [n]: those of the predictions, else −logsumexp of their logits."""
    return -ood_scores("energy", logits=predictions.logits, energies=predictions.energies)


def ood_scores_of(name: str, predictions: Predictions) -> np.ndarray:
    """OOD scores [k, n], high = unlike the training data; k is 1 unless the score is `combined`."""
    return np.stack([_single_score(part, predictions) for part in parts_of(name)])


def _single_score(name: str, predictions: Predictions) -> np.ndarray:
    if name == "energy":
        return energies_of(predictions)
    if name == "max_prob":
        return 1.0 - predictions.confidence
    if name not in (predictions.distances or {}):
        raise EbmcalError(
            f"These predictions have no distances to the training texts (column distance_{name}). Predict with the "
            "model that has the rule, or fit one with ood_score='energy' (--ood-score energy)."
        )
    return (predictions.distances or {})[name]


@dataclass(frozen=True, eq=False)
class TrainingFeatures:
    """Features of training texts, in half precision, and their classes (−1 = unknown)."""

    features: np.ndarray  # [n, H] float16
    labels: np.ndarray  # [n]

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray) -> "TrainingFeatures":
        largest = np.finfo(np.float16).max
        return cls(np.clip(features, -largest, largest).astype(np.float16), np.asarray(labels, dtype=np.int64))

    @functools.cached_property
    def fingerprint(self) -> str:
        """The identity of the features; predictions carry it with their distances (`meta["distances"]`)."""
        return hashlib.sha256(self.features.tobytes() + self.labels.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class OodTest:
    """Flags a text as OOD if at most a share `rate` of the calibration texts scores as high."""

    rate: float  # false-positive rate
    score: str  # a name in OOD_SCORES
    ranking: Ranking  # of the calibration texts
    training: TrainingFeatures | None = None  # for a distance, if the model is known
    is_approximate: bool = False  # the scores are out-of-fold: the rate is not guaranteed

    def scores(self, predictions: Predictions) -> np.ndarray:
        """OOD scores [k, n]; an error for distances that were measured from other features."""
        scores, measured = ood_scores_of(self.score, predictions), predictions.meta.get("distances")
        if self.training is not None and predictions.meta and measured != self.training.fingerprint:
            raise EbmcalError(
                "The distances of these predictions were not measured by this rule but from other features. Predict "
                "the texts again with the model that has the rule."
            )
        return scores

    @functools.cached_property
    def _distance(self) -> Distance:
        assert self.training is not None
        return fit_distance(str(distance_of(self.score)), self.training.features, self.training.labels)

    def add_distances(self, predictions: Predictions, features: np.ndarray) -> Predictions:
        """Predictions with their distances, measured from features [n, H]."""
        if self.training is None:
            return predictions
        size = self.training.features.shape[1]
        if features.shape[1] != size:
            raise EbmcalError(
                f"The abstention rule has features of size {size}, the model of size {features.shape[1]}: it is for "
                "another model. Fit it again: ebmcal abstain."
            )
        meta = predictions.meta | {"distances": self.training.fingerprint}
        return predictions.replace(distances={str(distance_of(self.score)): self._distance(features)}, meta=meta)

    @property
    def n_texts(self) -> int:
        """The number of calibration texts behind the p-values."""
        return sum(map(len, self.ranking))

    def is_flagged(self, scores: np.ndarray) -> np.ndarray:
        """Which texts are OOD [n], by their scores [k, n]."""
        return p_values(scores, self.ranking)[0] <= self.rate

    def below_cut_off(self, scores: np.ndarray, seed: int = 0) -> np.ndarray:
        """Which calibration rows [n], by their scores [k, n], may test the threshold of texts that are not OOD.

        Given the cut-offs, which are scores of the calibration rows, the rows below them are independent draws from
        the in-distribution texts that are not flagged. Rows above them, and those that define them, are not.
        """
        allowed = ~self.is_flagged(scores)
        for row, values, (cut, count) in zip(scores, self.ranking, cut_offs(self.ranking, self.rate), strict=True):
            ties = np.random.default_rng(seed).permutation(np.flatnonzero(allowed & (row == cut)))
            allowed[ties[: count - int(np.count_nonzero(values > cut))]] = False
        return allowed


def measure_distances(
    model: "Model | PathLike", rows: Predictions, name: str, training: Any
) -> tuple[Predictions, TrainingFeatures]:
    """The rows with their distances to the training texts of a model, and the features of these texts."""
    texts, (known, labels) = texts_of(rows, "held-out rows"), _training_texts(model, training, name)
    if len(known) < N_NEIGHBOURS:
        raise EbmcalError(
            f"{len(known)} training texts are too few to measure distances; pass at least {N_NEIGHBOURS}, better "
            f"hundreds (up to {MAX_TEXTS:,} are used)."
        )
    keys = {_key(text) for text in known}
    is_new = np.array([_key(text) not in keys for text in texts])
    if is_new.mean() < 0.9:
        raise EbmcalError(
            f"{(~is_new).sum():,} of the {len(texts):,} held-out texts are training texts, with distance 0, so new "
            "texts would be flagged as OOD by mistake. Pass held-out rows that the model was not trained on."
        )
    featurize = load_model(model).features
    chosen = np.linspace(0, len(known) - 1, min(MAX_TEXTS, len(known))).astype(int)
    features = TrainingFeatures.of(featurize([known[i] for i in chosen]), labels[chosen])
    far = fit_distance(name, features.features, features.labels)(featurize(texts))
    rows = rows.replace(distances={name: far}, meta=rows.meta | {"distances": features.fingerprint})
    return rows.rows(is_new), features


def _training_texts(model: "Model | PathLike", training: Any, name: str) -> tuple[list[Any], np.ndarray]:
    """The training texts and their labels (−1 = unknown): given, or those of the run that the model belongs to."""
    folder = model_folder(model)
    names = persistence.label_names(folder)
    if training is None:
        path = predictions_of_model(folder, "train")
        if path is None:
            raise EbmcalError(
                f"{folder} does not belong to a run, so its training texts, from which distances are measured, are "
                "unknown. Pass training (--training FILE), or use --ood-score energy."
            )
        training = Predictions.read(path, label_names=names)
    if isinstance(training, Predictions):
        return texts_of(training, "training rows"), training.labels
    require_extra("train", "datasets")
    from ebmcal.data import as_dataset

    card, label_column = read_card(folder), "label" if name == "mahalanobis" else None
    columns = {"text_column": card.get("text_column"), "text_pair_column": card.get("text_pair_column")}
    rows = as_dataset(training, **columns, label_column=label_column, label_names=names)
    texts = list(rows["text"])
    if "text_pair" in rows.column_names:
        texts = list(zip(texts, rows["text_pair"], strict=True))
    return texts, np.asarray(rows["label"]) if label_column else np.full(len(texts), -1)


def texts_of(rows: Predictions, what: str) -> list[Any]:
    """The texts or pairs of predictions; an error if there are none."""
    if rows.texts is None:
        raise EbmcalError(f"Distances are measured from texts; the {what} have none (column text). Predict again.")
    return rows.texts if rows.text_pairs is None else list(zip(rows.texts, rows.text_pairs, strict=True))


def _key(text: Any) -> str:
    return text_key(text) if isinstance(text, str) else text_key(*text)


def model_folder(model: "Model | PathLike") -> Path:
    """The directory of a model that is given as such or by its path."""
    return persistence.check_model_dir(model) if isinstance(model, str | os.PathLike) else model.folder


def load_model(model: "Model | PathLike") -> "Model":
    if not isinstance(model, str | os.PathLike):
        return model
    require_extra("train", "torch", "transformers")
    from ebmcal.model import load

    return load(model)
