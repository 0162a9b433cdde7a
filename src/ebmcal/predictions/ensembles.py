"""Several models' predictions for the same rows as one: the mean of their probabilities (deep ensembles, 2017)."""

from collections.abc import Sequence

import numpy as np

from ebmcal.errors import EbmcalError
from ebmcal.predictions.rows import Predictions, align


def ensemble(predictions: Sequence[Predictions]) -> Predictions:
    """The mean probabilities of predictions for the same rows, matched by id; labels and classes must be the same.

    Energies are averaged where all have them. `meta["ensemble"]` has the metadata of the members.

    >>> sure = Predictions([1, 0], ("no", "yes"), probs=[[0.0, 1.0], [1.0, 0.0]], ids=["a", "b"])
    >>> vague = Predictions([0, 1], ("no", "yes"), probs=[[0.6, 0.4], [0.4, 0.6]], ids=["b", "a"])
    >>> ensemble([sure, vague]).probs.tolist()
    [[0.2, 0.8], [0.8, 0.2]]
    """
    if len(predictions) < 2:
        raise EbmcalError(f"An ensemble needs the predictions of two models at least; {len(predictions)} came.")
    members = align([rows.in_order(_classes(predictions[0], rows)) for rows in predictions])
    energies = [rows.energies for rows in members if rows.energies is not None]
    first = members[0]
    return Predictions(
        first.labels, first.label_names, probs=np.mean([rows.probabilities() for rows in members], axis=0),
        energies=np.mean(energies, axis=0) if len(energies) == len(members) else None,
        ids=first.ids, texts=first.texts, text_pairs=first.text_pairs, human=first.human,
        meta=_shared([rows.meta for rows in members]) | {"ensemble": [rows.meta for rows in members]},
    )  # fmt: skip


def _classes(first: Predictions, rows: Predictions) -> Sequence[str]:
    """The order of the classes of the first, where they are the same."""
    return first.label_names if sorted(first.label_names) == sorted(rows.label_names) else rows.label_names


def _shared(metas: Sequence[dict[str, object]]) -> dict[str, object]:
    """What all members say alike, such as task, method and split."""
    return {name: value for name, value in metas[0].items() if all(meta.get(name) == value for meta in metas)}
