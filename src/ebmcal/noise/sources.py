"""The sources of a run's noise, ready to use: streams for training, held-out texts, examples and facts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebmcal.errors import EbmcalError
from ebmcal.noise.difficulty import N_FOLDS, kept_share
from ebmcal.noise.mixture import OnlineStream, StoredStream
from ebmcal.noise.setting import NoisePart
from ebmcal.noise.store import NoiseStore
from ebmcal.noise.texts import NoiseSource, NoiseStream, TextPair, Texts
from ebmcal.noise.unrelated import OtherTexts

#: Stored texts that the share of kept words is measured on.
N_KEPT = 500


@dataclass(frozen=True)
class OnlineNoise:
    """A source that writes a text for every draw. `unseen`: texts that no training uses, for held-out noise."""

    part: NoisePart
    source: NoiseSource
    train: Texts
    unseen: Texts

    def stream(self, seed: int) -> NoiseStream:
        return OnlineStream(self.part.name, self.source, self.train, seed)

    def restricted_to(self, rows: Texts) -> "OnlineNoise":
        return replace(self, train=rows)

    def held_out(self, n: int, seed: int) -> list[tuple[TextPair, int]]:
        """Noise texts with their groups: texts of different groups are made from different texts."""
        n_groups = min(N_FOLDS, max(1, len(self.unseen) // 2))
        found: list[tuple[TextPair, int]] = []
        for group in range(n_groups):
            pool = self.unseen.select(range(group, len(self.unseen), n_groups))
            rngs = [np.random.default_rng([seed, 23, i]) for i in range(group, n, n_groups)]
            is_file = isinstance(self.source, OtherTexts)
            written = OtherTexts(pool).write(self.train, rngs) if is_file else self.source.write(pool, rngs)
            found += [(text, group) for text in written]
        return found

    def examples(self, n: int) -> list[dict[str, Any]]:
        drawn = self.source.write(self.train, [np.random.default_rng([0, 29, i]) for i in range(n)])
        return [{"source": self.part.name, "text": text, "text_pair": pair} for text, pair in drawn]

    def facts(self) -> dict[str, Any]:
        return {}

    def reuse(self, n_draws: int) -> float:
        return min(1.0, float(n_draws))


@dataclass(frozen=True)
class StoredNoise:
    """A source with generated texts: the first `n_texts` of a store are for training, the rest is held out."""

    part: NoisePart
    store: NoiseStore
    card: dict[str, Any]
    n_texts: int
    source_ids: frozenset[str] | None = None  # only texts written from these sources; None: all

    def stream(self, seed: int | None) -> NoiseStream:
        """Shuffled by the seed; None keeps the order of the store."""
        table = self.store.table(self.n_texts, ["source_id", "text", "text_pair"])
        if self.source_ids is not None:
            table = table.filter(pc.is_in(table["source_id"], pa.array(sorted(self.source_ids), pa.string())))
        if not len(table):
            raise EbmcalError(f"The noise {self.part.name} has no text written from these rows. Generate more texts.")
        return StoredStream(self.part.name, table, seed)

    def restricted_to(self, rows: Texts) -> "StoredNoise":
        return replace(self, source_ids=frozenset(rows.ids))

    def held_out(self, n: int, seed: int) -> list[tuple[TextPair, int]]:
        rows = self.store.table(self.n_texts + n).slice(self.n_texts).to_pylist()
        groups = np.unique([row["source_id"] for row in rows], return_inverse=True)[1]
        return [((row["text"], row["text_pair"]), int(group)) for row, group in zip(rows, groups, strict=True)]

    def examples(self, n: int) -> list[dict[str, Any]]:
        first = {row["source_id"]: row for row in self.store.rows(8 * n) if row["sample"] == 0}
        shown = ("masked", "hidden", "text", "text_pair")
        return [{"source": self.part.name} | {k: row[k] for k in shown} for row in list(first.values())[:n]]

    def facts(self) -> dict[str, Any]:
        return {
            "n_texts": self.n_texts,
            "usable_share": self.store.usable_share,
            "rejected": self.store.rejected,
            "copies_of_source": self.store.copy_share,
            "kept_words": kept_share(self.store.rows(N_KEPT)),
            "lm": self.card,
            "sampling": self.store.identity,
        }

    def reuse(self, n_draws: int) -> float:
        return n_draws * self.part.share / self.n_texts


RunSource = OnlineNoise | StoredNoise
