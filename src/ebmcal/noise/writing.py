"""`write_noise`: noise for texts of one's own, outside of a run, as a `datasets.Dataset`.

Fits the noise LM on the texts and has it write them anew, or splices them: by the parts that `ebmcal run` is made of.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from ebmcal.config import SEEDS, STEPS
from ebmcal.data import Texts, load_texts
from ebmcal.data.in_memory import as_table_file
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError
from ebmcal.models.loading import check_language_model
from ebmcal.noise.filling import fill
from ebmcal.noise.fitting import NoiseLmSettings, fit
from ebmcal.noise.lm import CARD
from ebmcal.noise.masking import find_mode
from ebmcal.noise.store import NoiseSettings, NoiseStore
from ebmcal.noise.supply import fresh_supply
from ebmcal.progress import Console, Reporter
from ebmcal.storage.atomic import read_json, sweep
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.locks import locked
from ebmcal.storage.sealing import is_whole
from ebmcal.training.processes import n_processes

#: Texts in a step and learning rate of a noise LM that was pretrained.
BATCH, LEARNING_RATE = 8, 1e-4

#: Every so manieth text is kept from the LM, to see how well it writes; 200 of them are enough.
HELD_OUT = 20


def write_noise(
    texts: Any,
    *,
    count: int,
    source: str | None = None,
    lm: str = "gpt2",
    mode: str = "infill",
    mask_ratio: float = 0.4,
    text_column: str = "text",
    text_pair_column: str | None = None,
    steps: int | None = None,
    max_length: int = 128,
    seed: int = 0,
    output: str | Path | None = None,
    progress: bool = False,
) -> Dataset:
    """`count` noise texts like `texts`: a Dataset with the column text, and text_pair for pairs.

    `texts` are a list of texts or of (text, text) pairs, a Dataset or a table with the columns named here, or a file.
    A training without a repeat draws its rows × epochs × noise_ratio.

    `source` "splice" joins the beginning of one text and the end of another; "far" shuffles words; "splice 0.8, far
    0.2" does both. Without one, a language model writes: `lm` is a hub name, a local folder or `smollm2` (built
    in); `mode` is infill (the paper's), continue, gaps, plain or half; `mask_ratio` is the share of tokens that is
    written anew; `steps` of fitting it are by default as many as make it better. Its work is kept in
    `output`, if it is given: the same call again, or one for more texts, goes on from there.

    >>> from ebmcal import write_noise
    >>> noise = write_noise(["one two three", "un deux trois"], source="splice", count=4)
    >>> noise.column_names, len(noise), noise["text"][0] in ("one two three", "un deux trois")
    (['text'], 4, False)
    """
    _check(count=count, steps=steps, max_length=max_length, seed=seed, mask_ratio=mask_ratio)
    _check_names(source=source, lm=lm, mode=mode, text_column=text_column, text_pair_column=text_pair_column)
    reporter = Console() if progress else Reporter()
    if source is None:
        find_mode(mode)
        check_language_model(lm, say=reporter.say)
    with _folder(output) as folder:
        rows = _load(texts, Columns(text_column, text_pair_column), folder / "data")
        if source is not None:
            written = [draw.tokens for draw in fresh_supply(source, rows, list, seed).draw(range(count))]
        else:
            settings = NoiseLmSettings(lm, mode, mask_ratio, steps, BATCH, LEARNING_RATE, max_length, seed)
            store = _made(settings, rows, count, folder, reporter)
            written = [(row["text"], row["text_pair"]) for row in store.rows(count)]
    firsts, seconds = zip(*written, strict=True)
    return Dataset.from_dict({"text": firsts} | ({"text_pair": seconds} if rows.is_pair else {}))


def _made(settings: NoiseLmSettings, rows: Texts, count: int, folder: Path, reporter: Reporter) -> NoiseStore:
    """The store with `count` texts, made or found."""
    if find_mode(settings.mode).pairs_only and not rows.is_pair:
        raise EbmcalError(f"The noise mode {settings.mode!r} rewrites one sentence of a pair; these are single texts.")
    lm_folder = folder / "noise_lm" / settings.key(rows)
    if n_processes() > 1:
        return _require_made(settings, rows, count, folder)
    with locked(folder):
        for ours in ("data", "noise_lm", "noise"):  # the folder may hold other things
            sweep(folder / ours)
        held_out, learned = np.arange(0, len(rows), HELD_OUT)[:200], np.arange(len(rows))
        if len(rows) > HELD_OUT:
            learned = np.setdiff1d(learned, held_out)
        card = fit(settings, rows.take(learned), rows.take(held_out), lm_folder, reporter)
        store = NoiseStore.open(*_store(settings, rows, card, folder), reporter.say)
        fill(store, lm_folder, rows, count, reporter)
        return store


def _require_made(settings: NoiseLmSettings, rows: Texts, count: int, folder: Path) -> NoiseStore:
    """Processes of a torchrun read what was made before: one that works for hours would let the others time out."""
    card = folder / "noise_lm" / settings.key(rows) / CARD
    if is_whole(card.parent, "", lambda _: None):
        place, _ = _store(settings, rows, read_json(card), folder)
        if place.exists() and (store := NoiseStore.open(place)).has_texts(count):
            return store
    raise EbmcalError(
        "The noise is not made yet, and several processes cannot make it together. Call write_noise with the same "
        "settings and output='FOLDER' in a script of one process first; this one then finds it there."
    )


def _store(settings: NoiseLmSettings, rows: Texts, card: dict[str, Any], folder: Path) -> tuple[Path, dict[str, Any]]:
    """The place of a store and its identity."""
    noise = NoiseSettings(seed=settings.seed, precision=settings.precision)
    identity = noise.identity(rows.fingerprint, card, settings.key(rows))
    return folder / "noise" / fingerprint("noise", identity), identity


def _load(texts: Any, columns: Columns, folder: Path) -> Texts:
    path, found = as_table_file(texts, folder, columns)
    return load_texts(path, folder, found.text, found.pair)


@contextlib.contextmanager
def _folder(output: str | Path | None) -> Iterator[Path]:
    """Where to work: given, or a temporary folder that goes away."""
    if output is None:
        with tempfile.TemporaryDirectory(prefix="ebmcal-noise-") as scratch:
            yield Path(scratch)
        return
    if Path(output).exists() and not Path(output).is_dir():
        raise EbmcalError(f"output {output} is a file; give a folder.")
    yield Path(output).expanduser()


#: Whole numbers: the least and the most.
LIMITS = {"count": (1, 10**9), "steps": (1, STEPS), "max_length": (8, 8192), "seed": (0, SEEDS - 1)}


def _check(mask_ratio: float, **numbers: int | None) -> None:
    """All that is wrong with the numbers, at once."""
    problems = [
        f"{name} must be a whole number, {LIMITS[name][0]} or more and {LIMITS[name][1]:,} at most; {value!r} came."
        for name, value in numbers.items()
        if not (name == "steps" and value is None) and not _is_within(value, *LIMITS[name])
    ]
    if isinstance(mask_ratio, bool) or not isinstance(mask_ratio, int | float) or not 0 < mask_ratio < 1:
        problems.append(f"mask_ratio is a share between 0 and 1; {mask_ratio!r} came.")
    if problems:
        raise EbmcalError("\n".join(problems))


def _is_within(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


def _check_names(**names: str | None) -> None:
    wrong = [
        f"{name} is a word; {value!r} came."
        for name, value in names.items()
        if not isinstance(value, str | Path) and (value is not None or name in ("lm", "mode", "text_column"))
    ]
    if wrong:
        raise EbmcalError("\n".join(wrong))
