"""The collapsed sections of a report: all results, every model, energies, training, noise, data and settings."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd
import yaml

from ebmcal.data.audit import audit_messages
from ebmcal.predictions import Predictions
from ebmcal.reports import plots
from ebmcal.reports.overview import RELIABILITY, Focus
from ebmcal.reports.page import Block, Bullets, Code, Picture, Pictures, Section, draw
from ebmcal.reports.run_data import RunData, Subject
from ebmcal.reports.tables.examples import energy_examples, noise_examples
from ebmcal.reports.tables.noise import noise_auroc_table, noise_source_table
from ebmcal.reports.tables.results import list_test_sets
from ebmcal.reports.tables.summary import comparison_table, detection_table, seed_table, summary_table
from ebmcal.reports.tables.table import Table

#: Labels with a reliability diagram of their own, the most frequent ones.
MOST_LABELS = 6

LABELS = (
    "Of the texts that get this probability of the label, how many have it. The class-wise ECE averages the "
    "differences over labels."
)
RISK = (
    "If only the texts with the highest confidence (or lowest energy) were answered: the share of errors among them. "
    "Lower is better; the right end is the error rate on all texts."
)
HISTOGRAM = (
    "Energies of the test texts, and of noise and OOD texts if there are any. The less they overlap, the better."
)
ENTROPY = (
    "One point per text. If the energy works as the paper describes, texts of higher energy also get a less certain "
    "answer: the points rise to the right."
)
OVER_STEPS = "Calibration error at each evaluation during training; lower is better."
TRADEOFF = (
    "One point per evaluation during training, the last one ringed. Right: more accurate. Down: better calibrated."
)
NOISE_AUROC = "How well the energy separates noise from data in a batch: 0.5 is guessing; near 1 the noise is too easy."
LOSSES = "Terms of the loss during training; the noise term is weighted by the number of noise texts per data text."


def detail_sections(data: RunData, focus: Focus | None) -> list[Section]:
    """All collapsed sections that there is data for."""
    built: dict[str, Iterator[Block]] = {
        "All results with intervals": _results(data),
        "Every model and metric": _models(data),
        "Differences between models": iter([table] if len(table := comparison_table(data.evaluation)) else []),
        "OOD detection": iter([table] if len(table := detection_table(data.evaluation)) else []),
        "Reliability of every model": _reliability(data, focus),
        "Energies": _energies(data, focus),
        "Training": _training(data),
        "Noise": _noise(data),
        "Data": _data(data),
        "Settings": _settings(data),
    }
    found = {title: list(blocks) for title, blocks in built.items()}
    return [Section(title, blocks, collapsed=True) for title, blocks in found.items() if blocks]


def _results(data: RunData) -> Iterator[Block]:
    for name in list_test_sets(data.evaluation):
        table = summary_table(data.evaluation, verbose=True, test_set=name)
        if len(table):
            yield f"Test set {name}, including calibrators fitted on the training rows:"
            yield table


def _models(data: RunData) -> Iterator[Block]:
    """Every trained model with every metric, six metrics to a table."""
    if len(data.evaluation.results):
        table = seed_table(data.evaluation)
        model, *metrics = table.columns
        for start in range(0, len(metrics), 6):
            yield table.select([model, *metrics[start : start + 6]])


def _reliability(data: RunData, focus: Focus | None) -> Iterator[Block]:
    """All methods side by side, each label of the focus, out-of-fold rows, risk over coverage."""
    pictures = [picture for split in list_test_sets(data.evaluation) for picture in _side_by_side(data, split)]
    if focus is not None:
        pictures += [*_out_of_fold(focus), _labels(focus)]
    curves = {
        s.method: rows for s in _first_seeds(data) if s.test_sets and (rows := s.read(s.test_sets[0])) is not None
    }
    curves = {name: rows for name, rows in curves.items() if (rows.labels >= 0).any()}
    if curves:
        panels = [partial(plots.risk_coverage_curves, curves)]
        if any(rows.energies is not None for rows in curves.values()):
            panels.append(partial(plots.risk_coverage_curves, curves, by_energy=True))
        title = "Risk and coverage: by confidence" + (", by energy" if len(panels) > 1 else "")
        pictures.append(draw("risk", title, RISK, *panels))
    if pictures:
        yield Pictures(tuple(pictures))


def _side_by_side(data: RunData, split: str) -> Iterator[Picture]:
    named = {subject.method: subject.read(split) for subject in _first_seeds(data)}
    panels = [partial(plots.reliability_diagram, rows, name=name) for name, rows in named.items() if rows is not None]
    title = "All methods as trained" + ("" if split == "test" else f", {split}")
    if panels:
        yield draw(f"reliability-{split}", title, RELIABILITY, *panels, size=(3.8, 3.9), below=0.85)


def _labels(focus: Focus) -> Picture:
    counts = {name: int((focus.rows.labels == i).sum()) for i, name in enumerate(focus.rows.label_names)}
    shown = sorted(counts, key=lambda name: -counts[name])[:MOST_LABELS]
    panels = [partial(plots.reliability_diagram, focus.rows, label=name, histogram=False) for name in shown]
    more = f": the {len(shown)} most frequent of {len(counts)}" if len(counts) > len(shown) else ""
    return draw("labels", f"Each label, {focus.name}{more}", LABELS, *panels, size=(3.3, 2.95))


def _out_of_fold(focus: Focus) -> Iterator[Picture]:
    before = focus.subject.read("out_of_fold")
    if before is None or not (before.labels >= 0).any():
        return
    after = focus.subject.calibrated(focus.calibrator, "out_of_fold")
    named = {"out of fold": before, **({} if after is None else {"calibrated": after})}
    panels = [partial(plots.reliability_diagram, rows, name=name) for name, rows in named.items()]
    title = f"{focus.subject.name}: {before.n_rows:,} training rows, predicted by models trained without them"
    yield draw("out-of-fold", title, RELIABILITY, *panels, size=(4.4, 4.2), below=0.95)


def _energies(data: RunData, focus: Focus | None) -> Iterator[Block]:
    """Histogram and scatter of each method with energies, and example texts of one."""
    pictures, found = list[Picture](), list[Subject]()
    for number, subject in enumerate(_first_seeds(data)):
        others = [split for split in subject.splits if split == "noise" or split.startswith("ood_")]
        shown = [*subject.test_sets, *others]
        read = {split.replace("ood_", "OOD: "): subject.read(split) for split in shown}
        named = {name: rows for name, rows in read.items() if rows is not None and rows.energies is not None}
        test = subject.read(subject.test_sets[0]) if subject.test_sets else None
        if test is None or test.energies is None:
            continue
        panels = [partial(plots.energy_histograms, named), partial(plots.entropy_against_energy, test)]
        pictures.append(draw(f"energy-{number}", subject.name, "" if pictures else f"{HISTOGRAM} {ENTROPY}", *panels))
        found.append(subject)
    if pictures:
        yield Pictures(tuple(pictures))
        best = focus.subject.method if focus is not None else ""
        found.sort(key=lambda subject: (subject.method == "baseline", subject.method != best))
        yield from _examples(data, found[0])


def _examples(data: RunData, subject: Subject) -> Iterator[Block]:
    split = next(iter(subject.test_sets), "test")
    rows, baseline = subject.read(split), find_baseline(data, subject)
    before: Predictions | None = baseline.read(split) if baseline is not None else None
    table = energy_examples(rows, before) if rows is not None else None
    if table is not None and len(table):
        yield f"Examples of {subject.name}:"
        yield table


def _training(data: RunData) -> Iterator[Block]:
    histories = [(subject.method, subject.history) for subject in data.subjects]
    pictures: list[Picture] = []
    for ece, name in plots.ECES.items():
        if plots.history_series(histories, ece):
            panel = partial(plots.ece_over_steps, histories, ece=ece)
            pictures.append(draw(ece, f"{name} over training steps", OVER_STEPS, panel))
    if plots.history_series(histories, "eval_ece_classwise", "eval_accuracy"):
        pictures.append(
            draw("tradeoff", "Accuracy against ECE", TRADEOFF, partial(plots.accuracy_against_ece, histories))
        )
    if series := plots.history_series(histories, "noise_auroc"):
        panel = partial(plots.line_plot, series, x="step", y="noise AUROC", markers=False)
        pictures.append(draw("noise-auroc", "Noise AUROC over training steps", NOISE_AUROC, panel))
    for number, subject in enumerate(_first_seeds(data)):
        terms = [(plots.loss_terms(subject.history), "terms of the loss"), (plots.ENERGIES, "mean energies")]
        panels = [
            partial(plots.history_terms, subject.history, names, title=title, y=title.split()[-1])
            for names, title in terms
            if any(plots.history_series([("", subject.history)], key) for key in names)
        ]
        if panels:
            pictures.append(draw(f"loss-{number}", f"Loss of {subject.name}", LOSSES if not number else "", *panels))
    if pictures:
        yield Pictures(tuple(pictures))
    records = {name: record for name, record in data.part("training").items() if isinstance(record, Mapping)}
    if records:
        frame = pd.DataFrame(records.values()).dropna(axis="columns", how="all")
        frame.columns = pd.Index([str(name).replace("_", " ") for name in frame])
        frame.insert(0, "Model", list(records))
        yield Table(frame, "Trainings", digits=dict.fromkeys(frame, None))


def _noise(data: RunData) -> Iterator[Block]:
    histories = [(subject.method, subject.history) for subject in data.subjects]
    tables = [
        noise_auroc_table(histories, data.evaluation.detection, data.part("noise").get("reuse")),
        noise_source_table(data.part("noise")),
    ]
    yield from (table for table in tables if len(table))
    if data.noise_examples:
        yield noise_examples(data.noise_examples)
    yield from _listing(data, "noise", "Noise settings")


def _data(data: RunData) -> Iterator[Block]:
    with contextlib.suppress(KeyError, TypeError, AttributeError):  # an edited results.json
        messages = audit_messages(dict(data.part("audit")))
        if messages:
            yield Bullets(tuple(messages), "Found in the data, and what was done about it")
    yield from _listing(data, "audit", "Data audit")


def _settings(data: RunData) -> Iterator[Block]:
    yield from _listing(data, "versions", "Versions")
    yield from _listing(data, "fingerprints", "Fingerprints of the data")
    if data.config:
        yield Code(data.config, "config.yaml")


def _listing(data: RunData, part: str, title: str) -> Iterator[Code]:
    """A part of `results.json` as YAML."""
    if data.part(part):
        yield Code(yaml.safe_dump(dict(data.part(part)), sort_keys=False, allow_unicode=True), title)


def _first_seeds(data: RunData) -> list[Subject]:
    """The first seed of each method; the Python API draws the others."""
    found: dict[str, Subject] = {}
    for subject in data.subjects:
        found.setdefault(subject.method, subject)
    return list(found.values())


def find_baseline(data: RunData, subject: Subject) -> Subject | None:
    """The baseline of the same seed; of prediction files without one of that name, the first."""
    named = [s for s in data.subjects if s.method == "baseline" and s.seed == subject.seed]
    found = named or (list(data.subjects[:1]) if subject.seed is None else [])
    return found[0] if found and found[0] is not subject else None
