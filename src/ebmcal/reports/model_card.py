"""The card of a model directory: `README.md` as the Hugging Face hub shows it, with a reliability diagram.

Made from the run that the model belongs to, its calibrator and its abstention rule. The last line holds a fingerprint:
a card that was edited is never overwritten.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebmcal.errors import EbmcalError
from ebmcal.reports.run_data import RunData, Subject, read_run
from ebmcal.reports.tables.markdown import code_span
from ebmcal.reports.tables.results import list_test_sets, result_rows
from ebmcal.reports.tables.summary import metrics_table
from ebmcal.run_dir import RunDir, Trial, read_card
from ebmcal.storage import PathLike, atomic_write, fingerprint, read_json, write_text

CARD, PICTURE = "README.md", "reliability.png"

#: Metrics in the header that the hub reads, and in the table.
HEADER_METRICS = ("accuracy", "ece_top_label", "ece_classwise", "nll", "brier")

#: Settings that name places on the machine where the model was trained.
_PLACES = ("output", "cache_dir")
_SIGNATURE = re.compile(r"\n<!-- written by ebmcal, (\w{16}) -->\n\Z")


def write_model_card(model_dir: PathLike) -> Path | None:
    """Write `README.md` into a model directory; returns its path, or None if a card exists that was edited.

    write_model_card("runs/a/trials/hidden-seed1/model")
    """
    folder = Path(model_dir)
    if not (folder / "config.json").is_file():
        raise EbmcalError(f"{folder} has no config.json. Expected a model directory.")
    if not is_unedited(folder):
        return None
    place = RunDir.containing(folder)
    trial = place[1] if place else None
    data = read_run(place[0].root) if place and place[0].results.is_file() else None
    subject = next((s for s in data.subjects if s.name == trial.name), None) if data and trial else None
    content = _content(folder, trial, data, subject)
    text = _render(content | {"picture": _write_picture(folder, subject, content["fitted"])})
    write_text(folder / CARD, f"{text}\n<!-- written by ebmcal, {fingerprint(text)} -->\n")
    return folder / CARD


def is_unedited(folder: Path) -> bool:
    """Whether a model directory has no card yet, or one exactly as ebmcal wrote it."""
    if not (folder / CARD).exists():
        return True
    text = (folder / CARD).read_text(encoding="utf-8", errors="replace")
    signed = _SIGNATURE.search(text)
    return signed is not None and signed[1] == fingerprint(text[: signed.start()])


def _content(folder: Path, trial: Trial | None, data: RunData | None, subject: Subject | None) -> dict[str, Any]:
    card, names = read_card(folder), read_json(folder / "config.json").get("id2label") or {}
    config, calibrator = _config(data), card.get("calibrator")
    task = str(card.get("task") or config.get("task") or "text classification")
    audit = data.part("audit") if data else {}
    return {
        "header": _header(task, config.get("encoder"), trial, data),
        "title": f"{task}, {card['method']}" if card.get("method") else task,
        "name": trial.name if trial else folder.name,
        "task": task,
        "labels": [str(names[key]) for key in sorted(names, key=int)],
        "is_pair": bool(card.get("is_pair")),
        "encoder": config.get("encoder"),
        "method": card.get("method"),
        "seed": card.get("seed"),
        "energy": card.get("energy", "hidden"),
        "has_energy": card.get("method") not in (None, "baseline"),
        "folded": card.get("folded_temperature"),
        "fitted": calibrator.get("name") if isinstance(calibrator, Mapping) else None,
        "rule": _rule(folder, card),
        "tables": _tables(trial, data),
        "advice": [str(line) for line in data.part("advice").get("sentences") or []] if data else [],
        "splits": _splits(audit),
        "untested": _untested(card, trial, data),
        "config": _config_text(config),
        "versions": dict(data.part("versions")) if data else {},
    }


def _config(data: RunData | None) -> dict[str, Any]:
    """The settings of the run without places on this machine."""
    import yaml

    found = yaml.safe_load(data.config) if data and data.config else None
    settings = found if isinstance(found, dict) else {}
    return {key: _without_place(value) for key, value in settings.items() if key not in _PLACES}


def _config_text(config: Mapping[str, Any]) -> str:
    import yaml

    known = {key: value for key, value in config.items() if value not in (None, [], {})}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True).strip() if known else ""


def _without_place(value: Any) -> Any:
    """The name of a file or directory without its place on this machine."""
    if isinstance(value, dict):
        return {key: _without_place(part) for key, part in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).expanduser().is_absolute() else value


def _header(task: str, encoder: Any, trial: Trial | None, data: RunData | None) -> str:
    """The YAML that the hub reads, with the results of the model as it was trained."""
    import yaml

    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["ebmcal", "calibration", "energy-based-model"],
    }
    if isinstance(encoder, str) and encoder.count("/") == 1 and not encoder.startswith((".", "/", "~")):
        header["base_model"] = encoder
    results = [
        {
            "task": {"type": "text-classification"},
            "dataset": {"name": task, "type": task, "split": test_set},
            "metrics": [{"type": name, "value": round(value, 4)} for name, value in metrics.items()],
        }
        for test_set, metrics in _own_metrics(trial, data).items()
    ]
    if results:
        header |= {"metrics": ["accuracy"], "model-index": [{"name": task, "results": results}]}
    return str(yaml.safe_dump(header, sort_keys=False, allow_unicode=True))


def _own_metrics(trial: Trial | None, data: RunData | None) -> dict[str, dict[str, float]]:
    """Test set → metric → value of the model without a calibrator."""
    if trial is None or data is None:
        return {}
    frame = data.evaluation.results
    frame = frame[(frame["model"] == trial.name) & frame["calibrator"].isna() & frame["value"].notna()]
    found: dict[str, dict[str, float]] = {}
    for test_set, metric, value in zip(frame["test_set"], frame["metric"], frame["value"], strict=True):
        if metric in HEADER_METRICS:
            found.setdefault(str(test_set), {})[str(metric)] = float(value)
    return found


def _tables(trial: Trial | None, data: RunData | None) -> list[str]:
    """The results of this model on each test set, with every calibrator."""
    if trial is None or data is None:
        return []
    frame, tables = data.evaluation.results, []
    for test_set in list_test_sets(data.evaluation):
        rows = result_rows(frame[frame["model"] == trial.name], test_set)
        if not rows:
            continue
        shown = [m for m in HEADER_METRICS if any(m in row.values for row in rows)]
        table = metrics_table(rows, shown, intervals=True)
        n_rows = max(row.n_rows or 0 for row in rows)
        note = f"{n_rows:,} rows of the split {test_set}. In brackets: 95% intervals."
        tables.append(f"{table.to_markdown()}\n\n{note}")
    return tables


def _rule(folder: Path, card: Mapping[str, Any]) -> list[str]:
    """What the stored abstention rule guarantees; nothing if it belongs to another model or calibrator."""
    if not card.get("abstention"):
        return []
    from ebmcal.calibration import read_calibrator
    from ebmcal.selective import read_rule

    try:
        rule = read_rule(folder, calibrator=read_calibrator(folder))
    except EbmcalError:
        return []
    return list(rule.describe()) if rule else []


def _splits(audit: Mapping[str, Any]) -> list[dict[str, str]]:
    found = audit.get("splits")
    rows = []
    for name, split in found.items() if isinstance(found, Mapping) else ():
        if not isinstance(split, Mapping):
            continue
        count, labels = split.get("rows"), split.get("label_counts") or {}
        counts = ", ".join(f"{code_span(label)} {n:,}" for label, n in labels.items() if isinstance(n, int))
        rows.append({"name": str(name), "rows": f"{count:,}" if isinstance(count, int) else "–", "labels": counts})
    return rows


def _untested(card: Mapping[str, Any], trial: Trial | None, data: RunData | None) -> list[str]:
    lines = ["The model was not evaluated."]
    if data is not None and len(data.evaluation.results):
        lines = ["All results are for texts from the same source as the training texts."]
    texts = list(data.evaluation.detection["texts"]) if data is not None and len(data.evaluation.detection) else []
    others = sorted({str(name).removeprefix("ood_") for name in texts if str(name).startswith("ood_")})
    lines.append(
        f"Of texts from elsewhere, only their detection was measured: {', '.join(others)}."
        if others
        else "Not tested: texts from another source, time, genre or language."
    )
    if card.get("max_length"):
        lines.append(f"Texts are truncated after {card['max_length']} tokens.")
    lines.append("Not tested: differences between groups of people, and texts written to deceive the model.")
    if card.get("seed") is not None:
        lines.append(f"The results are of seed {card['seed']} only.")
    return lines


def _write_picture(folder: Path, subject: Subject | None, calibrator: str | None) -> str | None:
    """Reliability on the test rows, as trained and calibrated; returns the name of the file."""
    test = subject.read(subject.test_sets[0]) if subject and subject.test_sets else None
    if subject is None or test is None or not (test.labels >= 0).any():
        return None
    from matplotlib.figure import Figure

    from ebmcal.reports.plots import reliability_diagram

    shown = {"as trained": test}
    for source in ("cross-fit", "dev"):
        after = subject.calibrated(f"{calibrator or 'temperature'} ({source})", subject.test_sets[0])
        if after is not None:
            shown[f"with {calibrator or 'temperature'}"] = after
            break
    figure = Figure(figsize=(4.5 * len(shown), 4.8))
    for ax, (name, rows) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        reliability_diagram(rows, ax, name=name)
    figure.subplots_adjust(left=0.07 * 2 / len(shown), right=0.97, top=0.92, bottom=0.34)
    with atomic_write(folder / PICTURE) as temporary:
        figure.savefig(temporary, format="png", dpi=110, facecolor="white", metadata={"Software": None})
    return PICTURE


def _render(content: Mapping[str, Any]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ebmcal.reports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(code=code_span)
    text = environment.get_template("card.md.j2").render(content)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"
