"""The card of a model directory: `README.md` as the Hugging Face hub shows it, with a reliability diagram.

Made from the run that the model belongs to, its calibrator and its abstention rule. The last line holds a fingerprint:
a card that was edited is never overwritten.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ebmcal.calibration import folded_temperature, read_calibrator
from ebmcal.errors import EbmcalError
from ebmcal.reports.page import environment
from ebmcal.reports.plots import reliability_diagram
from ebmcal.reports.run_data import RunData, Subject, read_run
from ebmcal.reports.tables import INTERVAL_NOTE, list_test_sets, metrics_table, over_seeds
from ebmcal.run_dir import RunDir, read_card
from ebmcal.selective import read_rule
from ebmcal.storage import PathLike, atomic_write, fingerprint, read_json, write_text

CARD, PICTURE = "README.md", "reliability.png"

#: Metrics in the header that the hub reads, and in the table.
HEADER_METRICS = ("accuracy", "ece_top_label", "ece_classwise", "nll", "brier")

_SIGNATURE = re.compile(r"\n<!-- written by ebmcal, (\w{16}) -->\n\Z")


def write_model_card(model_dir: PathLike) -> Path | None:
    """Write `README.md` into a model directory; returns its path, or None if a card exists that was edited.

    write_model_card("runs/a/trials/hidden-seed1/model")
    """
    folder = Path(model_dir)
    if not (folder / "config.json").is_file():
        raise EbmcalError(f"{folder} has no config.json. Expected a model directory.")
    if not _is_unedited(folder / CARD):
        return None
    place = RunDir.containing(folder)
    data = read_run(place[0].root) if place and place[0].results.is_file() else None
    name = place[1].name if place else folder.name
    subject = next((s for s in data.subjects if s.name == name), None) if data else None
    text = environment().get_template("card.md.j2").render(_content(folder, name, data, subject))
    text = re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"
    write_text(folder / CARD, f"{text}\n<!-- written by ebmcal, {fingerprint(text)} -->\n")
    return folder / CARD


def _is_unedited(path: Path) -> bool:
    """Whether there is no card yet, or one exactly as ebmcal wrote it."""
    if not path.exists():
        return True
    text = path.read_text(encoding="utf-8", errors="replace")
    signed = _SIGNATURE.search(text)
    return signed is not None and signed[1] == fingerprint(text[: signed.start()])


def _content(folder: Path, name: str, data: RunData | None, subject: Subject | None) -> dict[str, Any]:
    """What the template shows."""
    card, checkpoint = read_card(folder), read_json(folder / "config.json")
    names, config, calibrator = checkpoint.get("id2label") or {}, _config(data), card.get("calibrator")
    fitted = calibrator.get("calibrator") if isinstance(calibrator, Mapping) else None
    task = str(card.get("task") or config.get("task") or "text classification")
    known = {key: value for key, value in config.items() if value not in (None, [], {})}
    found = data.part("audit").get("splits") if data else None
    is_changed = data is not None and _is_changed(folder, name, data)
    texts = map(str, data.evaluation.detection["texts"] if data else ())
    return {
        "header": _header(task, config.get("encoder"), name, None if is_changed else data, fitted),
        "needs_code": "auto_map" in checkpoint,
        "task": task,
        "name": name,
        "card": card,
        "labels": [names[key] for key in sorted(names, key=int)],
        "encoder": config.get("encoder"),
        "fitted": fitted,
        "rule": _rule(folder, card),
        "is_evaluated": data is not None and len(data.evaluation.results) > 0,
        "tables": list(_tables(name, data)),
        "is_changed": is_changed,
        "advice": (data.part("advice").get("sentences") or []) if data else [],
        "splits": found if isinstance(found, Mapping) else {},
        "ood_texts": sorted({text.removeprefix("ood_") for text in texts if text.startswith("ood_")}),
        "config": yaml.safe_dump(known, sort_keys=False, allow_unicode=True).strip() if known else "",
        "versions": data.part("versions") if data else {},
        "picture": _write_picture(folder, None if is_changed else subject, fitted or "temperature"),
    }


def _is_changed(folder: Path, name: str, data: RunData) -> bool:
    """Whether the model was calibrated after the run: its calibrator, or a folded temperature, is not the run's."""
    if folded_temperature(folder) is not None:
        return True
    calibrator, frame = read_calibrator(folder), data.evaluation.results
    if calibrator is None:
        return False
    of_run = frame[(frame["model"] == name) & frame["calibrator"].fillna("").str.startswith(f"{calibrator.name} (")]
    return not any(str(note).split("; ")[0] == calibrator.note for note in of_run["note"])


def _config(data: RunData | None) -> dict[str, Any]:
    """The settings of the run without places on this machine."""
    found = yaml.safe_load(data.config) if data else None
    settings = found if isinstance(found, dict) else {}
    return {key: _without_place(value) for key, value in settings.items() if key not in ("output", "cache_dir")}


def _without_place(value: Any) -> Any:
    """The name of a file or directory without its place on this machine."""
    if isinstance(value, dict):
        return {key: _without_place(part) for key, part in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).expanduser().is_absolute() else value


def _header(task: str, encoder: Any, name: str, data: RunData | None, fitted: str | None) -> str:
    """The YAML that the hub reads, with the results of the model, calibrated if the run did that."""
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["ebmcal", "calibration", "energy-based-model"],
    }
    if isinstance(encoder, str) and encoder.count("/") == 1 and not encoder.startswith((".", "/", "~")):
        header["base_model"] = encoder
    results = []
    if data is not None:
        frame = data.evaluation.results
        chosen = data.part("recommended")
        calibrator = chosen.get("calibrator") if fitted and chosen.get("trial") == name else None
        is_row = frame["calibrator"].isna() if calibrator is None else frame["calibrator"] == calibrator
        frame = frame[(frame["model"] == name) & is_row & frame["value"].notna()]
        frame = frame[frame["metric"].isin(HEADER_METRICS)]
        for test_set, rows in frame.groupby("test_set", sort=False):
            metrics = [{"type": m, "value": round(v, 4)} for m, v in zip(rows["metric"], rows["value"], strict=True)]
            dataset = {"name": task, "type": task, "split": test_set}
            results.append({"task": {"type": "text-classification"}, "dataset": dataset, "metrics": metrics})
    if results:
        header |= {"metrics": ["accuracy"], "model-index": [{"name": task, "results": results}]}
    return str(yaml.safe_dump(header, sort_keys=False, allow_unicode=True))


def _tables(name: str, data: RunData | None) -> Iterator[str]:
    """The results of this model on each test set, with every calibrator."""
    if data is None:
        return
    frame = data.evaluation.results
    for test_set in list_test_sets(data.evaluation):
        found = over_seeds(frame[frame["model"] == name], test_set)
        if len(found):
            metrics = [m for m in HEADER_METRICS if m in found.index.get_level_values("metric")]
            table = metrics_table(found, list(dict.fromkeys(found.index.droplevel("metric"))), metrics, intervals=True)
            table = replace(table, better={})  # one model: nothing to choose
            note = f"{found['n_rows'].max():,.0f} rows of the split {test_set}. {INTERVAL_NOTE}"
            yield f"{table.to_markdown()}\n\n{note}"


def _rule(folder: Path, card: Mapping[str, Any]) -> list[str]:
    """What the stored abstention rule guarantees; nothing if it belongs to another model or calibrator."""
    try:
        rule = read_rule(folder, calibrator=read_calibrator(folder)) if card.get("abstention") else None
    except EbmcalError:
        return []
    return list(rule.describe()) if rule else []


def _write_picture(folder: Path, subject: Subject | None, calibrator: str) -> str | None:
    """Reliability on the test rows, as trained and calibrated; returns the name of the file."""
    test = subject.test if subject else None
    if subject is None or test is None or not (test.labels >= 0).any():
        return None
    from matplotlib.figure import Figure

    after = subject.first_calibrated(calibrator)
    shown = {"as trained": test, **({} if after is None else {f"with {calibrator}": after})}
    figure = Figure(figsize=(4.5 * len(shown), 4.8))
    for ax, (name, rows) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        reliability_diagram(rows, ax, name=name)
    figure.subplots_adjust(left=0.07 * 2 / len(shown), right=0.97, top=0.92, bottom=0.34)
    with atomic_write(folder / PICTURE) as temporary:
        figure.savefig(temporary, format="png", dpi=110, facecolor="white", metadata={"Software": None})
    return PICTURE
