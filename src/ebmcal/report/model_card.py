"""The card of a model folder: `README.md` as the Hugging Face hub shows it, with a reliability picture.

Made from what lies beside the model: its run's figures and settings, its calibrator, its rule. It is not sealed and may
be edited: a card that somebody changed is never written over, which its last line, a fingerprint, tells.
"""

import contextlib
import re
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ebmcal.calibrators import TemperatureScaling, attached
from ebmcal.calibrators.in_model import model_folder
from ebmcal.calibrators.weights import folded_temperature
from ebmcal.config import RunConfig, read_yaml
from ebmcal.decisions import attached_rule
from ebmcal.errors import EbmcalError
from ebmcal.plots import draw_reliability, prepare_reliability
from ebmcal.predictions import Predictions
from ebmcal.runfolder import Cell, RunFolder, cell_of_model
from ebmcal.storage.atomic import read_json, write_text, writing
from ebmcal.storage.checksums import fingerprint
from ebmcal.tables import list_test_sets, summary_table, to_markdown

CARD, PICTURE = "README.md", "reliability.png"
CARD_FILES = (CARD, PICTURE)

#: Metrics of the table, where they were measured.
SHOWN = ("accuracy", "ece_top_label", "ece_classwise", "nll", "brier")

#: Settings that are not part of the command on a card: places on the machine it was trained on.
PLACES = {"output", "cache_dir"}

_SIGNED = re.compile(r"\n<!-- written by ebmcal, (\w{16}) -->\n\Z")


def write_card(model: str | Path) -> Path | None:
    """Write `README.md` into a model folder; None where there is one that ebmcal did not write, or that was edited.

    write_card("runs/a/checkpoints/hidden-seed1/model")
    """
    folder = model_folder(model)
    if not may_write(folder):
        return None
    place = cell_of_model(folder)
    run, cell = place if place else (None, None)
    document = read_json(run.metrics) if run and run.metrics.exists() else {}
    drawn = _test_files(run, cell) if run and cell and document else {}
    text = _render(_content(folder, run, cell, document) | {"picture": PICTURE if drawn else None})
    signed = f"{text}\n<!-- written by ebmcal, {fingerprint(text)} -->\n"
    if (folder / CARD).exists() and (folder / CARD).read_text(encoding="utf-8") == signed:
        return folder / CARD  # the same figures, so the same picture
    if drawn:
        _write_picture(folder, drawn)
    write_text(folder / CARD, signed)
    return folder / CARD


def may_write(folder: Path) -> bool:
    """Whether there is no card in a model folder yet, or one that nobody edited."""
    card = folder / CARD
    if not card.exists():
        return True
    text = card.read_text(encoding="utf-8", errors="replace")
    signed = _SIGNED.search(text)
    return signed is not None and signed.group(1) == fingerprint(text[: signed.start()])


def _content(folder: Path, run: RunFolder | None, cell: Cell | None, document: Mapping[str, Any]) -> dict[str, Any]:
    facts = read_json(folder / "ebmcal.json") if (folder / "ebmcal.json").exists() else {}
    config = read_yaml(run.config) if run and run.config.exists() else {}
    task, encoder = str(facts.get("task") or "text classification"), _without_place(config.get("encoder"))
    method, calibrator = facts.get("method"), attached(folder)
    rows = [r for r in document.get("rows", ()) if cell and (r["method"], r.get("seed")) == (cell.method, cell.seed)]
    own = {**document, "rows": [row for row in rows if not row.get("error")]}
    names = read_json(folder / "config.json").get("id2label") or {}
    return {
        "title": f"{task}, {method}" if method else task,
        "header": _header(task, encoder, own),
        "name": f"{cell.name if cell else folder.name}",
        "task": task, "labels": [str(names[key]) for key in sorted(names, key=int)],
        "is_pair": bool(facts.get("text_pair_column")), "encoder": encoder, "method": method, "seed": facts.get("seed"),
        "energy": facts.get("energy", "hidden"),
        "uses_energy": bool((facts.get("training") or {}).get("noise_texts_used")),
        "folded": folded_temperature(folder), "calibrator": calibrator.name if calibrator else None,
        "rule": _rule(folder), "tables": _tables(own), "advice": (document.get("advice") or {}).get("sentences", []),
        "splits": _splits(document), "untested": _untested(own, facts, cell),
        "command": _command(config), "versions": _versions(document),
    }  # fmt: skip


def _header(task: str, encoder: str | None, document: Mapping[str, Any]) -> str:
    """The YAML that the hub reads; the figures of the model itself go into its index."""
    header: dict[str, Any] = {
        "library_name": "transformers", "pipeline_tag": "text-classification",
        "tags": ["ebmcal", "calibration", "energy-based-model"],
    }  # fmt: skip
    if encoder and "/" in encoder and not encoder.startswith((".", "/", "~")):
        header["base_model"] = encoder
    results = [
        {
            "task": {"type": "text-classification"},
            "dataset": {"name": task, "type": task, "split": row.get("test_set", "test")},
            "metrics": [
                {"type": name, "value": round(row["metrics"][name]["value"], 4)}
                for name in SHOWN
                if (row["metrics"].get(name) or {}).get("value") is not None
            ],
        }
        for row in document.get("rows", ())
        if not row.get("posthoc")
    ]
    if results:
        header |= {"metrics": ["accuracy"], "model-index": [{"name": task, "results": results}]}
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True)


def _tables(document: Mapping[str, Any]) -> list[str]:
    return [
        to_markdown(summary_table(document, test_set=name, published=False))
        for name in list_test_sets(document)
        if document["rows"]
    ]


def _rule(folder: Path) -> list[str]:
    with contextlib.suppress(EbmcalError):  # of another calibrator or damaged: its promise is void
        rule = attached_rule(folder)
        return rule.describe() if rule else []
    return []


def _splits(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = (document.get("data") or {}).get("splits") or {}
    return [
        {
            "name": name,
            "rows": f"{split['rows']:,}",
            "labels": ", ".join(f"{_words(label)} {n:,}" for label, n in split.get("label_counts", {}).items()),
        }
        for name, split in found.items()
    ]


def _untested(document: Mapping[str, Any], facts: Mapping[str, Any], cell: Cell | None) -> list[str]:
    sizes = {row.get("test_set", "test"): row["n_rows"] for row in document.get("rows", ())}
    tested = ", ".join(f"{name} ({n:,} rows)" for name, n in sizes.items())
    other = {key.partition(" by ")[0] for key in (document.get("detection") or {}).get(cell.name if cell else "", {})}
    other = {name.removeprefix("ood_") for name in other if name.startswith("ood_")}
    lines = ["Anything: no test rows were judged."]
    if sizes:
        lines = [f"Every figure above is of {tested}, which come from the same source as the training rows."]
    lines.append(
        f"Texts from elsewhere: only whether they are told apart was measured, on {', '.join(sorted(other))}."
        if other
        else "Texts from another source, time, genre or language than the training rows."
    )
    if facts.get("max_length"):
        lines.append(f"What stands behind the first {facts['max_length']} tokens of a text: it is cut off.")
    lines.append("Differences between groups of people, and texts that were written to deceive it.")
    if facts.get("seed") is not None:
        lines.append(f"Other seeds than {facts['seed']}: the figures are of this one model.")
    return lines


def _command(config: Mapping[str, Any]) -> str:
    """The settings that are not the usual ones, as flags."""
    fields = RunConfig.model_fields
    usual = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    given = {k: v for k, v in config.items() if k in fields and k not in PLACES and v != usual[k] and v is not None}
    flags = [_flag(name, value) for name, value in given.items()]
    return " \\\n  ".join(["ebmcal run", *flags, "--output RUN"]) if given else ""


def _without_place(value: Any) -> Any:
    """The name of a file or folder of the machine it was made on, without where it is there."""
    return Path(value).name if isinstance(value, str) and Path(value).expanduser().is_absolute() else value


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    if isinstance(value, Mapping):
        return " ".join(f"{flag} {shlex.quote(f'{k}={_without_place(v)}')}" for k, v in value.items())
    words = ",".join(map(str, value)) if isinstance(value, list) else str(_without_place(value))
    return f"{flag} {shlex.quote(words)}"


def _versions(document: Mapping[str, Any]) -> str:
    found = document.get("versions") or {}
    return "With " + ", ".join(f"{name} {version}" for name, version in found.items()) + "." if found else ""


def _test_files(run: RunFolder, cell: Cell) -> dict[str, Path]:
    """The predictions that the picture is made from; empty where one is missing."""
    paths = {split: run.predictions(cell, split) for split in ("calibration", "test")}
    return paths if all(path.exists() for path in paths.values()) else {}


def _write_picture(folder: Path, paths: Mapping[str, Path]) -> None:
    """Reliability on the test rows, as trained and with a temperature."""
    from matplotlib.figure import Figure

    held_out, test = (Predictions.read(path) for path in paths.values())
    shown = {"as trained": test}
    with contextlib.suppress(EbmcalError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows, no minimum: the table's notes have said so
        shown["with temperature"] = TemperatureScaling().fit_predictions(held_out).apply(test)
    figure = Figure(figsize=(4.5 * len(shown), 4.8))
    for ax, (name, rows) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        draw_reliability(prepare_reliability(rows, name), ax)
    figure.subplots_adjust(left=0.07, right=0.97, top=0.92, bottom=0.34)
    with writing(folder / PICTURE) as aside:
        figure.savefig(aside, format="png", dpi=110, facecolor="white", metadata={"Software": None})


def _render(content: Mapping[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ebmcal.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals.update(words=_words)
    environment.filters.update(words=_words)
    text = environment.get_template("card.md.j2").render(content)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _words(text: Any) -> str:
    """A name as code: Markdown and HTML inside it stay what they are."""
    shown = " ".join(str(text).replace("`", "'").split())
    return f"`{shown}`" if shown else "–"
