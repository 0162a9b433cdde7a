"""The noise of a run: the noise LM, the store it fills and the tokens of its texts, made or found in the cache.

Between `pipeline`, which asks for noise, and `noise_fit` and `noise_sampling`, which make it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebmcal.config import RunConfig
from ebmcal.data import Texts
from ebmcal.errors import EbmcalError
from ebmcal.models.tokens import TokenTable
from ebmcal.noise.filling import Engine, fill, here
from ebmcal.noise.fitting import NoiseLmSettings, fit
from ebmcal.noise.lm import CARD
from ebmcal.noise.store import RECORD, NoiseSettings, NoiseStore
from ebmcal.pipeline.cache import cache_of, made_once, tokens_from
from ebmcal.pipeline.cell import training_plan
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import read_json
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import damage
from ebmcal.training.processes import n_processes

#: Noise texts that every model is also run on, for the energy histograms.
SHOWN_NOISE = 500


@dataclass(frozen=True)
class Noise:
    """The noise of a run: the first `n_texts` of a store, and the same as tokens of the encoder."""

    store: NoiseStore
    card: dict[str, Any]
    n_texts: int
    table: TokenTable


def make_noise(config: RunConfig, train: Texts, held_out: Texts, reporter: Reporter) -> Noise:
    """The noise LM, the noise it writes, and its tokens: made, or found in the cache."""
    if n_processes() > 1:
        _require_made(config, train)
    lm_folder, card = fit_noise_lm(config, train, held_out, reporter)
    store = fill_noise_store(config, train, lm_folder, card, reporter)
    wanted = noise_wanted(config, len(train))
    rows = ((row["text"], row["text_pair"]) for row in store.rows(wanted))
    return Noise(store, card, wanted, tokens_from(rows, fingerprint("noise", store.key, wanted), config, reporter))


def fit_noise_lm(config: RunConfig, train: Texts, held_out: Texts, reporter: Reporter) -> tuple[Path, dict[str, Any]]:
    """The folder and the card of the noise LM of a resolved config."""
    settings = lm_settings(config)
    folder = cache_of(config) / "noise_lm" / settings.key(train)
    with made_once(folder, "noise LM", reporter):
        return folder, fit(settings, train, held_out, folder, reporter)


def fill_noise_store(
    config: RunConfig, train: Texts, lm_folder: Path, card: dict[str, Any], reporter: Reporter,
    *, count: int | None = None, folder: Path | None = None, engine: Engine = here,
) -> NoiseStore:  # fmt: skip
    """The noise store of a resolved config, with as many texts as a training draws, or `count`."""
    identity = _identity(config, train, card, lm_folder.name)
    folder = folder or _store_folder(config, train, card, lm_folder.name)
    with made_once(folder, "noise", reporter):
        store = NoiseStore.open(folder, identity, reporter.say)
        fill(store, lm_folder, train, count or noise_wanted(config, len(train)), reporter, engine)
    return store


def _identity(config: RunConfig, train: Texts, card: dict[str, Any], lm_key: str) -> dict[str, Any]:
    settings = NoiseSettings(config.top_k, config.samples_per_mask, seed=config.noise_seed, precision=config.precision)
    return settings.identity(train.fingerprint, card, lm_key)


def _store_folder(config: RunConfig, train: Texts, card: dict[str, Any], lm_key: str) -> Path:
    return cache_of(config) / "noise" / fingerprint("noise", _identity(config, train, card, lm_key))


def _require_made(config: RunConfig, train: Texts) -> None:
    """Several processes only share a training: one of them making noise for hours would let the others time out."""
    settings = lm_settings(config)
    card = cache_of(config) / "noise_lm" / settings.key(train) / CARD
    if card.exists() and not damage(card.parent):
        folder = _store_folder(config, train, read_json(card), card.parent.name)
        if (folder / RECORD).exists() and len(NoiseStore.open(folder)) >= noise_wanted(config, len(train)):
            return
    raise EbmcalError(
        "The noise is not made yet, and several processes cannot make it together. "
        "Make it first, with the same settings: ebmcal noise sample …; then run this command again."
    )


def noise_wanted(config: RunConfig, n_train: int) -> int:
    """Noise texts for one training without a repeat, or the limit that was set."""
    draws = training_plan(config, n_train, n_noise=1, seed=0).n_noise_draws
    return min(draws, config.noise_samples or 2_000_000)


def lm_settings(config: RunConfig) -> NoiseLmSettings:
    """The part of a resolved config that the noise LM depends on."""
    return NoiseLmSettings(
        name=config.noise_lm,
        mode=config.noise_mode,
        mask_ratio=config.mask_ratio,
        steps=config.noise_lm_steps,
        batch_size=config.noise_lm_batch_size,
        learning_rate=config.noise_lm_learning_rate,
        max_length=config.max_length,
        seed=config.noise_seed,
        precision=config.precision,
        trust_remote_code=config.trust_remote_code,
    )


def noise_facts(noise: Noise) -> dict[str, Any]:
    """What a reader should know of the noise."""
    return {
        "n_samples": noise.n_texts,
        "identical_share": noise.store.identical_share,
        "thrown_away": noise.store.thrown_away(),
        "perplexity": noise.card["perplexity"],
        "perplexity_before": noise.card["perplexity_before"],
        "lm_parameters": noise.card["n_parameters"],
        "lm_seconds": noise.card["seconds"],
        "settings": noise.store.identity["settings"] | {k: noise.card[k] for k in ("mode", "mask_ratio")},
    }


def noise_examples(store: NoiseStore, train: Texts, n: int = 20) -> list[dict[str, Any]]:
    """One sample each of the first few sources, beside its source."""
    firsts = {row["source_id"]: row for row in store.rows(8 * n) if row["sample"] == 0}
    chosen = list(firsts.values())[:n]
    sources = train.rows([np.flatnonzero(train.ids == row["source_id"])[0] for row in chosen])
    return [
        {
            "source": text, "source_pair": pair, "masked": row["masked"], "hidden": row["hidden"],
            "noise": row["text"], "noise_pair": row["text_pair"],
        }
        for row, (text, pair) in zip(chosen, sources, strict=True)
    ]  # fmt: skip


def shown_rows(noise: Noise | None) -> list[dict[str, Any]]:
    """The noise texts that every model is also run on."""
    return list(noise.store.rows(min(SHOWN_NOISE, noise.n_texts))) if noise else []
