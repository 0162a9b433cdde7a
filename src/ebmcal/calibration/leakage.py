"""Leakage checks: rows must not be those a calibrator was fitted on or a model was trained on; duplicates count once.

`check_held_out` validates predictions before anything is fitted on them for a model. Prediction files describe their
origin in their metadata, model directories in `ebmcal.json`; training rows are also recognised by content, from the run
that a model belongs to or from the sketch in `ebmcal.json` (entry "training_rows").
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.calibration.sketch import FittingRows, text_key
from ebmcal.errors import EbmcalError
from ebmcal.predictions import Predictions
from ebmcal.run_dir import predictions_of_model, read_card, weights_fingerprint
from ebmcal.storage import PathLike

#: What identifies a trained model, in its card and in the metadata of predictions.
IDENTITY = ("task", "method", "seed")
#: With a larger share of training rows, predictions are refused; fewer are left out.
MAX_TRAINING_SHARE = 0.1
#: The entry of `ebmcal.json` with `FittingRows.of_texts(...).to_json()` of the training texts.
TRAINING_ROWS = "training_rows"


class LeakageWarning(UserWarning):
    """Rows are used twice: to fit or train something, and to calibrate or evaluate it."""


def warn_if_leaked(fitted_on: FittingRows, rows: Predictions) -> None:
    """Warn with `LeakageWarning` if some of the labelled rows were fitted on."""
    share = fitted_on.share_among(rows)
    if share:
        warnings.warn(
            f"About {share:.0%} of these rows were used to fit the calibrator, so metrics on them are too optimistic. "
            "Evaluate it on other rows.",
            LeakageWarning,
            stacklevel=3,
        )


def check_held_out(
    rows: Predictions, model_dir: PathLike, *, where: object = "These predictions", allow_mismatch: bool = False
) -> Predictions:
    """The labelled rows that may be used to calibrate a model; an error for training rows and for another model's.

    A few rows with training texts are left out with a warning. `allow_mismatch` only checks that there are two classes.
    """
    rows = rows.labelled()
    check_two_classes(rows, where)
    if allow_mismatch:
        return rows
    hint = "Pass the model's predictions for rows it was not trained on, such as the calibration split."
    if rows.meta.get("split") == "train":
        raise EbmcalError(f"{where}: predictions for training rows, on which the model is too often right. {hint}")
    if differences := model_differences(rows.meta, Path(model_dir)):
        raise EbmcalError(f"{where}: predictions of another model ({differences}). {hint}")
    if rows.meta.get("split") == "out_of_fold":  # training rows, predicted by models that were not trained on them
        return rows
    return _without_training_rows(rows, Path(model_dir), where, hint)


def check_two_classes(rows: Predictions, where: object) -> None:
    """Raise if all labelled rows have the same label."""
    seen = np.unique(rows.labels)
    if len(seen) < 2:
        raise EbmcalError(
            f"{where}: all labels are {rows.label_names[seen[0]]!r}, so a calibrator would predict only that class. "
            "Pass rows of at least two classes."
        )


def model_differences(meta: dict[str, Any], model_dir: Path) -> str:
    """How the model that made predictions, according to their metadata, differs from this one; empty if it does not."""
    if meta.get("ensemble"):
        return "the average of several models or of passes with dropout"
    card = read_card(model_dir)
    given = (read_card(str(meta["model"])) if meta.get("model") else {}) | meta
    found = [
        f"{name} {given[name]}, not {card[name]}"
        for name in IDENTITY
        if name in given and name in card and given[name] != card[name]
    ]
    if meta.get("weights") and meta["weights"] != weights_fingerprint(model_dir):
        found.append("other weights, or a temperature was folded in since")
    return ", ".join(found)


def _without_training_rows(rows: Predictions, model_dir: Path, where: object, hint: str) -> Predictions:
    is_training, share = _find_training_rows(rows, model_dir)
    if share >= MAX_TRAINING_SHARE:
        raise EbmcalError(
            f"{where}: {share:.0%} of the {rows.n_rows:,} rows are training rows of the model, on which it is too "
            f"often right. {hint}"
        )
    n_known = int(np.count_nonzero(is_training))
    if n_known:
        warnings.warn(
            f"{where}: {n_known:,} of {rows.n_rows:,} rows have training texts of the model; they are left out.",
            LeakageWarning,
            stacklevel=4,
        )
        rows = rows.rows(~is_training)
        check_two_classes(rows, where)
    return rows


def _find_training_rows(rows: Predictions, model_dir: Path) -> tuple[np.ndarray, float]:
    """Which rows are training rows of a model [n], and their share; only the share if no single row is certain."""
    is_training = np.zeros(rows.n_rows, dtype=bool)
    path = predictions_of_model(model_dir, "train")
    train = None if path is None else Predictions.read(path)
    if train is not None and train.texts is not None and rows.texts is not None:
        known = set(text_keys(train))
        is_training = np.array([key in known for key in text_keys(rows)])
        return is_training, float(is_training.mean())
    if train is not None:
        return is_training, FittingRows.of(train).share_among(rows)
    sketch = read_card(model_dir).get(TRAINING_ROWS)
    try:
        return is_training, 0.0 if sketch is None else FittingRows.from_json(sketch).share_among(rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EbmcalError(
            f"{TRAINING_ROWS!r} in ebmcal.json of {model_dir} is damaged ({error}). Remove it."
        ) from error


def text_keys(rows: Predictions) -> list[str]:
    """The texts or pairs of predictions without differences in spaces and letter case."""
    pairs = rows.text_pairs or [""] * rows.n_rows
    return [text_key(text, pair) for text, pair in zip(rows.texts or [], pairs, strict=True)]


def distinct_rows(rows: Predictions) -> np.ndarray:
    """A group number for each row `[n]`, 0 first; exact duplicates share one.

    Duplicates have the same text and label; without texts the same logits (or probabilities) and label, unless these
    are so coarse (rounded, half precision) that different texts share them: then also the same id.

    >>> p = Predictions([0, 1, 0], ("no", "yes"), probs=[[0.5, 0.5]] * 3, texts=["a", "b", "a"])
    >>> distinct_rows(p).tolist()
    [0, 1, 0]
    """
    if rows.texts is not None:
        pairs = rows.text_pairs or [""] * rows.n_rows
        keys: Any = list(zip(rows.texts, pairs, rows.labels.tolist(), strict=True))
    else:
        values = np.ascontiguousarray(rows.probs if rows.logits is None else rows.logits, dtype=np.float32)
        ids = rows.ids.tolist() if _is_coarse(rows) else [""] * rows.n_rows
        keys = list(zip(map(bytes, values), rows.labels.tolist(), ids, strict=True))
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def count_distinct(rows: Predictions) -> int:
    """The number of rows with exact duplicates counted once."""
    return int(distinct_rows(rows).max()) + 1


def _is_coarse(rows: Predictions) -> bool:
    """Whether most rows are rounded to four decimals or less, also if normalised afterwards, or in half precision."""
    values = (rows.probs if rows.logits is None else rows.logits)[:2000]
    with np.errstate(over="ignore"):
        is_half = values.astype(np.float16) == values
    is_half |= (values.astype(np.float32).view(np.uint32) & 0xFFFF) == 0  # bfloat16
    is_coarse = is_half.all(axis=1) | np.isclose(np.round(values, 4), values, rtol=0, atol=1e-7).all(axis=1)
    # Rounded to d decimals, a row sums to k / 10^d with k near 10^d; divided by that sum, it is whole numbers over k.
    for k in [scale + step for scale in (100, 1000, 10_000) for step in range(-3, 4)] if rows.logits is None else []:
        is_coarse |= np.isclose(np.rint(k * values), k * values, rtol=0, atol=1e-6).all(axis=1)
    return bool(is_coarse.mean() > 0.5)
