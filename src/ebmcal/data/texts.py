"""Access to the texts of a dataset by position, and a random order of its rows."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from ebmcal.errors import EbmcalError

#: A text, or a pair of texts; the second is None for single texts.
TextPair = tuple[str, str | None]


class Texts:
    """The texts (columns text, text_pair), labels (-1 if unknown) and ids of a dataset.

    >>> texts = Texts(Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}))
    >>> texts[[1, 0]], texts.labels.tolist()
    ([('b', None), ('a', None)], [1, 0])
    """

    def __init__(self, dataset: Dataset) -> None:
        has = dataset.column_names
        if "text" not in has:
            raise EbmcalError(f"Noise is made from a column `text` (and `text_pair`); got {', '.join(has)}.")
        self.dataset, self.is_pair = dataset, "text_pair" in has
        self._rows = Dataset(dataset.data).select_columns(["text", *["text_pair"][: self.is_pair]])
        # Resolved here: `datasets` would resolve selected rows one by one, in Python, at every read.
        selected = dataset._indices
        self._positions = np.arange(len(dataset)) if selected is None else selected.column(0).to_numpy()
        self.labels = np.array(dataset["label"][:] if "label" in has else [-1] * len(dataset), dtype=np.int64)
        self.ids = [str(i) for i in (dataset["id"][:] if "id" in has else range(len(dataset)))]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, indices: Sequence[int] | np.ndarray) -> list[TextPair]:
        rows = self._rows[self._positions[np.asarray(indices, dtype=np.int64)].tolist()]
        return list(zip(rows["text"], rows.get("text_pair", [None] * len(rows["text"])), strict=True))


class ShuffledOrder:
    """The numbers 0 … n-1 in endless rounds, each round in a new order: none is used twice before all are used once.

    >>> order = ShuffledOrder(3, seed=0)
    >>> sorted(order[i] for i in range(3)), sorted(order[i] for i in range(3, 6))
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed
        self._round, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, position: int) -> int:
        round_, offset = divmod(position, self.n)
        if round_ != self._round:
            self._round, self._order = round_, np.random.default_rng([self.seed, round_]).permutation(self.n)
        return int(self._order[offset])
