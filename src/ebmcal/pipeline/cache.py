"""What runs share: a folder of noise LMs, noise, tokens and data, each under a key made from what it depends on."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ebmcal.config import RunConfig
from ebmcal.data import Texts
from ebmcal.errors import EbmcalError
from ebmcal.models.loading import load_tokenizer
from ebmcal.models.tokens import Row, TokenTable, tokenize, tokenizer_fingerprint
from ebmcal.noise.store import RECORD
from ebmcal.progress import Reporter
from ebmcal.runfolder import RunFolder
from ebmcal.storage.atomic import can_write, remove, sweep
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.locks import locked
from ebmcal.storage.places import cache_dir
from ebmcal.storage.sealing import is_whole

#: Folders of the cache; texts lie beside them.
KINDS = ("tokens", "noise_lm", "noise", "probes")


def cache_of(config: RunConfig) -> Path:
    """The cache of a run; where a shared one is read-only, one in the run folder that shows what it has."""
    shared = cache_dir(config.cache_dir)
    if config.output is None or can_write(shared):
        return shared
    own = RunFolder(config.output).cache
    entries = [
        *shared.glob("texts-*.*"),
        *(p for kind in KINDS if kind != "noise" for p in (shared / kind).glob("[!.]*")),
    ]
    # Stores of noise grow: their folders are our own, only what is in them is shown.
    for there in [*entries, *(shared / "noise").glob("*/[!.]*")]:
        place = own / there.relative_to(shared)
        if ".lock" in (there.suffix, there.parent.suffix) or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if there.name == RECORD:
            shutil.copyfile(there, place)
        else:
            place.symlink_to(there.resolve())
    return own


def sweep_cache(cache: Path) -> None:
    """Remove what killed processes were writing. Whoever writes holds a lock: what is locked is left alone."""
    for part in [*cache.glob(".*.part"), *(p for kind in KINDS for p in (cache / kind).glob(".*.part"))]:
        name = part.name[1:].rsplit(".", 2)[0]
        name = name.split(".")[0] if name.startswith("texts-") else name
        with contextlib.suppress(EbmcalError), locked(part.with_name(f"{name}.lock")):
            sweep(part.with_name(name))
            remove(part)


def tokens_of(texts: Texts, config: RunConfig, reporter: Reporter) -> TokenTable:
    """The texts of a split as tokens of the encoder, from the cache if they are there."""
    rows = (row for batch in texts.batches() for row in batch)
    return tokens_from(rows, texts.fingerprint, config, reporter)


def tokens_from(rows: Iterable[Row], key: str, config: RunConfig, reporter: Reporter) -> TokenTable:
    """Rows as tokens of the encoder, under the key of their contents."""
    tokenizer = load_tokenizer(config.encoder, config.trust_remote_code)
    name = fingerprint("tokens", key, tokenizer_fingerprint(tokenizer), config.max_length)
    folder = cache_of(config) / "tokens" / name
    with made_once(folder, "tokens", reporter):
        there = TokenTable.open(folder) if is_whole(folder, f"token table {name}", reporter.say) else None
        return there or tokenize(rows, tokenizer, config.max_length, folder)


@contextlib.contextmanager
def made_once(folder: Path, what: str, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of a folder that runs share: a second run waits and then finds it made."""
    place = Path(os.path.abspath(folder))  # "." has no name; a link into a cache that is read-only is not followed
    place = place.with_name(place.name + ".lock")
    with locked(place, waiting=lambda holder: reporter.say(f"{what}: waits for {holder}, which is making it")):
        sweep(folder)
        yield
