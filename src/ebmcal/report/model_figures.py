"""The figures of one trained model, with the baseline of the same seed beside it where that helps."""

from functools import partial

from ebmcal import plots
from ebmcal.predictions import Predictions
from ebmcal.report.picture import Picture, draw
from ebmcal.report.reading import Subject

RELIABILITY = (
    "Bars: how often the model is right at each level of confidence, with 95% intervals. A calibrated model's bars "
    "end on the dashed diagonal; the hatched part is how far the mean confidence is from the accuracy, "
    "over-confidence where it reaches above the bar. "
    "Below: how many texts have that confidence, their mean confidence (dotted) and the accuracy (solid)."
)
CLASSES = (
    "The same for each label by itself: of the texts given this probability of the label, how many have it. "
    "ECE class-wise averages the distances over all labels."
)
RISK = (
    "Errors among the texts answered when only the most confident (or lowest-energy) ones are. "
    "A line that rises steadily from zero knows its own errors; a flat one does not."
)
ENTROPY = (
    "One point a text (at most 500 drawn). The method works if texts of higher energy, which look less like data, "
    "also get a less certain answer: the cloud rises to the right."
)
HISTOGRAM = (
    "How energies spread over the test texts, and over generated and out-of-domain ones where there are any. "
    "The less they overlap, the better the energy tells data from the rest."
)
TRAINING = (
    "The terms of the loss and the mean energies as training went on. "
    "The noise term is weighted by the number of noise texts for each data text."
)


def model_figures(subject: Subject, baseline: Subject | None, key: str) -> list[Picture]:
    """Every figure there is data for; `key` names the model within the page."""
    beside = baseline if baseline is not subject else None
    found: list[Picture | None] = []
    for split, rows in subject.test_sets().items():
        other = beside.splits.get(split) if beside is not None else None
        others = {} if other is None else {beside.method: other}
        place = _Place(f"{key}-{split}", "" if split == "test" else f", {split}")
        found += [_reliability(subject, rows, others, place), _classes(rows, place)]
        found += [_risk(subject, rows, others, place), _entropy(rows, place)]
    found += [_histogram(subject, key), _training(subject, key)]
    return [picture for picture in found if picture]


class _Place:
    """Where a figure stands: the start of its key, and what its heading adds for a test set other than the main one."""

    def __init__(self, key: str, where: str) -> None:
        self.key, self.where = key, where


def _reliability(subject: Subject, rows: Predictions, others: dict[str, Predictions], place: _Place) -> Picture:
    shown = [plots.prepare_reliability(r, name) for name, r in (others | {subject.method: rows}).items()]
    panels = [partial(plots.draw_reliability, data) for data in shown]
    return draw(f"{place.key}-rel", f"Reliability{place.where}", RELIABILITY, *panels, size=(4.4, 4.4), under=0.95)


def _classes(rows: Predictions, place: _Place) -> Picture | None:
    shown = plots.prepare_class_reliability(rows)
    panels = [partial(plots.draw_reliability, data, histogram=False) for data in shown]
    title = f"Reliability of each label{place.where}"
    if len(shown) < rows.n_classes:
        title += f": the {len(shown)} most frequent of {rows.n_classes}"
    return draw(f"{place.key}-cls", title, CLASSES, *panels, size=(3.1, 2.95)) if shown else None


def _risk(subject: Subject, rows: Predictions, others: dict[str, Predictions], place: _Place) -> Picture | None:
    lines = plots.prepare_risk_coverage(others | {subject.method: rows})
    lines += plots.prepare_risk_coverage({f"{subject.method}, by energy": rows}, by="energy")
    panel = partial(plots.draw_risk_coverage, lines)
    return draw(f"{place.key}-risk", f"Risk and coverage{place.where}", RISK, panel) if lines else None


def _entropy(rows: Predictions, place: _Place) -> Picture | None:
    data = plots.prepare_entropy_energy(rows)
    panel = partial(plots.draw_entropy_energy, data)
    return draw(f"{place.key}-ent", f"Entropy and energy{place.where}", ENTROPY, panel) if data else None


def _histogram(subject: Subject, key: str) -> Picture | None:
    ordered = sorted(subject.splits.items(), key=lambda item: (not item[0].startswith("test"), item[0]))
    named = {split.replace("ood_", "out of domain: "): rows for split, rows in ordered}
    data = plots.prepare_energy_histogram(named)
    panel = partial(plots.draw_energy_histogram, data)
    return draw(f"{key}-hist", "Energies of test, noise and other texts", HISTOGRAM, panel) if data else None


def _training(subject: Subject, key: str) -> Picture | None:
    losses = plots.prepare_terms([subject.history], plots.LOSS_TERMS)
    energies = plots.prepare_terms([subject.history], plots.ENERGIES)
    panels = []
    if losses:
        panels.append(partial(plots.draw_terms, losses, title="terms of the loss", y="loss"))
    if energies:
        panels.append(partial(plots.draw_terms, energies, title="mean energies", y="energy"))
    return draw(f"{key}-train", "Training", TRAINING, *panels) if panels else None
