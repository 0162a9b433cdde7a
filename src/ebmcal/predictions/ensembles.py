"""Several predictions of the same rows: matched by id, and averaged (deep ensembles, Lakshminarayanan et al. 2017)."""

from collections.abc import Sequence

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions.rows import Predictions


def align(predictions: Sequence[Predictions]) -> list[Predictions]:
    """The predictions with their rows in the order of the first, matched by id, so that rows can be paired.

    >>> a = Predictions([0, 1], ("no", "yes"), probs=[[1.0, 0.0], [0.0, 1.0]], ids=["x", "y"])
    >>> align([a, a.rows([1, 0])])[1].ids.tolist()
    ['x', 'y']
    """
    first = predictions[0]
    order = _positions(first)
    return [first] + [_aligned(first, order, other, place) for place, other in enumerate(predictions[1:], start=2)]


def ensemble(predictions: Sequence[Predictions]) -> Predictions:
    """Mean probabilities of predictions for the same rows, matched by id; labels and classes must agree.

    Energies are averaged if all members have them. `meta["ensemble"]` holds the metadata of the members.

    >>> sure = Predictions([1, 0], ("no", "yes"), probs=[[0.0, 1.0], [1.0, 0.0]], ids=["a", "b"])
    >>> vague = Predictions([0, 1], ("no", "yes"), probs=[[0.6, 0.4], [0.4, 0.6]], ids=["b", "a"])
    >>> ensemble([sure, vague]).probs.tolist()
    [[0.2, 0.8], [0.8, 0.2]]
    """
    if len(predictions) < 2:
        raise EbmcalError(f"An ensemble needs the predictions of at least two models, got {len(predictions)}.")
    members = align([rows.reorder(_class_order(predictions[0], rows)) for rows in predictions])
    energies = [rows.energies for rows in members if rows.energies is not None]
    metas = [rows.meta for rows in members]
    shared = {name: value for name, value in metas[0].items() if all(meta.get(name) == value for meta in metas)}
    return members[0].replace(
        probs=np.mean([rows.probs for rows in members], axis=0),
        energies=np.mean(energies, axis=0) if len(energies) == len(members) else None,
        distances=None,
        meta=shared | {"ensemble": metas},
    )


def _class_order(first: Predictions, rows: Predictions) -> Sequence[str]:
    """The classes in the order of the first predictions, if they are the same classes."""
    return first.label_names if sorted(first.label_names) == sorted(rows.label_names) else rows.label_names


def _aligned(first: Predictions, order: dict[str, int], other: Predictions, place: int) -> Predictions:
    where = _positions(other)
    lone = next((i for i in (*order, *where) if i not in where or i not in order), None)
    if lone is not None:
        holder = "the first" if lone in order else f"number {place}"
        raise EbmcalError(
            f"The row with id {str(lone)!r} is only in {holder} of the predictions; expected the same rows."
        )
    if other.label_names != first.label_names:
        raise EbmcalError(f"Classes differ: {first.label_names} and, in number {place}, {other.label_names}.")
    out = other.rows([where[i] for i in order])
    differ = np.flatnonzero(out.labels != first.labels)
    if len(differ):
        raise EbmcalError(
            f"The row with id {out.ids[differ[0]]!r} has another label in number {place} than in the first."
        )
    return out


def _positions(predictions: Predictions) -> dict[str, int]:
    where: dict[str, int] = {}
    for position, row_id in enumerate(predictions.ids.tolist()):
        if where.setdefault(row_id, position) != position:
            raise EbmcalError(
                f"The id {row_id!r} is on rows {where[row_id]} and {position}; ids must be unique to match rows."
            )
    return where
