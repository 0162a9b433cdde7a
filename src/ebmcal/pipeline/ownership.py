"""Whose a run folder is: the config and the data that it was begun with, checked before anything is written to it.

config.yaml and fingerprints.json vouch for each other, and the cards of finished models for both.
"""

import contextlib
from collections.abc import Mapping

from ebmcal import __version__
from ebmcal.config import RunConfig, added, differences, fixed_settings, load_config, read_yaml, save_config
from ebmcal.data import TaskData
from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import CARD_FILE
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.atomic import can_write, read_json, sweep, write_json, write_text
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.locks import LOCK
from ebmcal.storage.sealing import SEAL, damage


def claim(
    folder: RunFolder, config: RunConfig, data: TaskData, reporter: Reporter, files: Mapping[str, str] | None = None
) -> None:
    """Record config and data, or refuse a folder that belongs to others. It is not sealed while it is worked on.

    `files`: what else a training reads -> fingerprint. Methods, seeds and the like are added to those that are there.
    """
    wrong = check_folder(folder, config, data, files)
    there, record = _recorded_config(folder), _recorded_data(folder) or {}
    if there is not None and not differences(there, config):
        config = config.model_copy(update=added(there, config))
    if (folder.root / SEAL).exists():
        wrong += damage(folder.root)
    for line in dict.fromkeys(wrong):
        reporter.say(f"{folder.root.name}: {line}: made again")
    (folder.root / SEAL).unlink(missing_ok=True)
    sweep(folder.root)
    prints = record | fingerprints_of(data) | dict(files or {}) | {"config": _settings_key(config)}
    prints |= {"ebmcal": record.get("ebmcal", __version__)}
    write_json(folder.fingerprints, prints, checked=True)
    write_text(folder.config, save_config(config))


def _settings_key(config: RunConfig) -> str:
    """A fingerprint of the settings that a run folder belongs to."""
    return fingerprint(fixed_settings(config))


def fingerprints_of(data: TaskData) -> dict[str, str]:
    """Split → fingerprint of its texts and labels."""
    return {name: split.fingerprint for name, split in data.splits.items()}


def check_place(folder: RunFolder) -> bool:
    """Whether a run was begun in a folder; one that holds something else is refused before anything is written."""
    if not can_write(folder.root):
        raise EbmcalError(f"Could not write in {folder.root}: no permission. Choose another --output or grant access.")
    names = [path.name for path in folder.root.iterdir()] if folder.root.exists() else []
    # A process that was killed while it wrote the first file has left a part of it.
    first = {LOCK, folder.log.name, folder.data.name, folder.cache.name}
    begun = any(name not in first and not name.endswith(".part") for name in names)
    if begun and _recorded_config(folder) is None and _recorded_data(folder) is None:
        _refuse_other_version(folder)
        raise EbmcalError(
            f"The output folder {folder.root} is not empty and is no run folder: it has no whole "
            f"{folder.config.name} or {folder.fingerprints.name}. Choose another --output."
        )
    return begun


def check_folder(
    folder: RunFolder, config: RunConfig, data: TaskData, files: Mapping[str, str] | None = None
) -> list[str]:
    """Refuse a folder that belongs to another config or other data, or holds something else; writes nothing.

    config.yaml and fingerprints.json vouch for each other: returns which of them is lost or damaged.
    """
    there, record = _recorded_config(folder), _recorded_data(folder)
    begun = check_place(folder)
    ours = record is not None and record.get("config") == _settings_key(config)
    changed = differences(there, config) if there else []
    if begun and not ours and (changed or there is None):
        _refuse_other_version(folder)
        which = "; ".join(changed) or f"its {folder.config.name} is lost or damaged"
        raise EbmcalError(
            f"The output folder {folder.root} belongs to another config ({which}). "
            "Choose another --output, or delete the folder."
        )
    known = record or _data_of_models(folder)
    _check_data(folder, known, fingerprints_of(data) | {n: f for n, f in (files or {}).items() if n in known})
    wrong = {folder.config: there is None or changed, folder.fingerprints: record is None}
    return [f"{path.name} is lost or damaged" for path, is_wrong in wrong.items() if begun and is_wrong]


def _refuse_other_version(folder: RunFolder) -> None:
    """Refuse a config that is whole but has settings, or values, of another version of ebmcal."""
    try:
        values = read_yaml(folder.config)
    except EbmcalError:
        return  # damaged
    known = set(RunConfig.model_fields)
    if len(known & set(values)) < len(known) / 2:
        return  # something else
    try:
        load_config(None, values)
    except EbmcalError as error:
        raise EbmcalError(
            f"The run folder {folder.root} was made by ebmcal {_version_of(folder)}; this is {__version__}, which does "
            f"not take its {folder.config.name}: {error} Use that version, or another --output."
        ) from error


def _version_of(folder: RunFolder) -> str:
    """The version that a run folder says it was made by."""
    with contextlib.suppress(EbmcalError, KeyError, TypeError):
        return str(read_json(folder.metrics)["versions"]["ebmcal"])
    return str((_recorded_data(folder) or {}).get("ebmcal", "of another version"))


def all_cells(folder: RunFolder, config: RunConfig) -> list[Cell]:
    """The cells that were ever asked for in a folder, those of `config` among them."""
    there = _recorded_config(folder) or config
    both = config.model_copy(update=added(there, config))
    return [Cell(method, seed) for seed in both.seeds for method in both.methods]


def _recorded_config(folder: RunFolder) -> RunConfig | None:
    """The config of a run folder, or None when it is absent or unreadable."""
    try:
        return load_config(folder.config, {})  # settings of older versions become those of this one
    except Exception:  # unreadable in whatever way
        return None


def _recorded_data(folder: RunFolder) -> dict[str, str] | None:
    """The fingerprints of a run folder, or None when they are absent or damaged."""
    with contextlib.suppress(EbmcalError):
        record = read_json(folder.fingerprints)
        return record if isinstance(record, dict) else None
    return None


def _data_of_models(folder: RunFolder) -> dict[str, str]:
    """The fingerprints of the data that a finished model was trained on, as its card has them."""
    for card in sorted(folder.root.glob(f"checkpoints/*/model/{CARD_FILE}")):
        with contextlib.suppress(EbmcalError, KeyError, TypeError):
            return dict(read_json(card)["data"])
    return {}


def _check_data(folder: RunFolder, there: dict[str, str], now: dict[str, str]) -> None:
    changed = [name for name in now if there and there.get(name) != now[name]]
    if changed:
        raise EbmcalError(
            f"The texts or labels of {', '.join(changed)} have changed since {folder.root} was begun. "
            "Choose another --output, or delete the folder."
        )
