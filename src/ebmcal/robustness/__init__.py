"""Robustness of a classifier to perturbed texts: random tokens, typos, case, word order, truncation, negation.

    ebmcal.evaluate_robustness("model", "test.csv", baseline="other").report("robustness.html")

`perturbations` changes texts and reads test suites (YAML). The result is tidy tables, and a page with plots:

    conditions   model, perturbation, title, unit, strength (0: the original texts), n_rows, accuracy, ece_top_label and
                 nll (each with _low and _high), confidence, energy, ood (share), changed_label (share)
    tests        model, suite, test, kind, strength, n_cases, n_failed, failed (share), failed_low, failed_high
    failures     model, suite, test, strength, text, expected, got
    examples     perturbation, strength, text, perturbed
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ebmcal import metrics
from ebmcal.errors import EbmcalError, plural, unknown_name
from ebmcal.metrics.calibration import wilson
from ebmcal.predictions import Predictions
from ebmcal.progress import make_reporter
from ebmcal.reports.page import Block, Column, Page, Picture, Section, Table, write_page
from ebmcal.reports.plots import Series, draw, line_plot
from ebmcal.robustness.perturbations import PERTURBATIONS, SuiteTest, TokenSource, builtin_suites, read_suite
from ebmcal.run_dir import model_name, predictions_of_model
from ebmcal.selective.ood import p_values
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    from ebmcal.model import Model

__all__ = ["PERTURBATIONS", "Robustness", "builtin_suites", "evaluate_robustness", "read_suite"]

Text = str | tuple[str, str]
Record = dict[str, Any]
Outcome = tuple[Text, str, str, bool]  # text, expected, got, whether it failed

METRIC_NAMES = ("accuracy", "ece_top_label", "nll")
N_RESAMPLES = 200  # there are many conditions

#: Share of texts like the training data that are flagged as OOD, the same for all models.
FALSE_ALARM_RATE = 0.05
N_EXAMPLES, N_FAILURES = 2, 5

#: The kinds of tests, as CheckList abbreviates them.
ABBREVIATIONS = {"invariance": "INV", "directional": "DIR", "minimum-functionality": "MFT"}

#: Pictures of a perturbation: title, caption, column → label of the axis.
PICTURES = (
    (
        "accuracy and calibration",
        "Each point: the same texts, perturbed at this strength, with 95% intervals. A robust model may lose accuracy "
        "but keeps its calibration.",
        {"accuracy": "accuracy", "ece_top_label": "ECE top-label"},
    ),
    (
        "energy and OOD detection",
        "Mean energy relative to the original texts, and the share of texts flagged as OOD. Both should rise.",
        {"energy": "energy − energy at 0", "ood": "share OOD"},
    ),
)


@dataclass(frozen=True, repr=False)
class Robustness:
    """The result of `evaluate_robustness`; `ebmcal.robustness` lists the columns of the tables."""

    conditions: pd.DataFrame
    tests: pd.DataFrame
    failures: pd.DataFrame
    examples: pd.DataFrame
    meta: dict[str, Any]

    def tables(self) -> list[Table]:
        """Metrics by perturbation and strength, and the failure rates of the tests."""
        known = self.conditions[self.conditions["perturbation"].isin(["", *PERTURBATIONS])]
        return [
            table for table in (condition_table(known, self.meta), suite_table(self.tests, self.meta)) if len(table)
        ]

    def to_json(self) -> str:
        """Everything as one JSON object."""
        names = ("conditions", "tests", "failures", "examples")
        records = {name: json.loads(getattr(self, name).to_json(orient="records")) for name in names}
        return json.dumps(self.meta | records, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: PathLike) -> Path:
        """Write a self-contained HTML page; returns its path."""
        return write_page(path, make_page(self))

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


def evaluate_robustness(
    model: "Model | PathLike",
    data: Any,
    *,
    baseline: "Model | PathLike | None" = None,
    perturbations: Sequence[str] | None = None,
    suites: Sequence[PathLike] = (),
    use_builtin_suites: bool = True,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    max_rows: int = 500,
    seed: int = 0,
    progress: bool | None = None,
) -> Robustness:
    """Evaluate a model on perturbed texts: accuracy, calibration, energy and OOD share by strength, and test suites.

    `data` is anything that `Model.predict` takes, with labels; at most `max_rows` rows are sampled. `perturbations` are
    names from `PERTURBATIONS` (default: all), `suites` are YAML files with your own tests, `baseline` is another model
    with the same labels, evaluated on the same texts. The same seed gives the same texts.

        ebmcal.evaluate_robustness("model", "test.csv", baseline="baseline").report("robustness.html")
    """
    names = list(PERTURBATIONS) if perturbations is None else list(perturbations)
    unknown = next((name for name in names if name not in PERTURBATIONS), None)
    if unknown is not None:
        raise unknown_name("perturbation", unknown, PERTURBATIONS)
    tests = [t for path in [*(builtin_suites() if use_builtin_suites else []), *suites] for t in read_suite(path)]
    if not names and not tests:
        raise EbmcalError("Nothing to test: no perturbations and no suites were given.")
    models = _load(model, baseline)
    texts, labels = _sample(
        models[0], data, text_column, text_pair_column, label_column or models[0].label_column, max_rows, seed
    )
    suitable = [test for test in tests if _suits(test, models[0], texts)]
    conditions = list(make_conditions(texts, names, suitable, TokenSource(models[0].predictor.tokenizer), seed))
    subjects = [Subject(name, partial(_predict, m, models[0].label_names), _ood_rule(m)) for name, m in _named(models)]
    total = len(models) * len(texts) * (1 + len(conditions))
    with make_reporter(progress).stage("Robustness", total) as advance:
        records = score(subjects, texts, labels, conditions, suitable, advance)
    skipped = [test for test in tests if test not in suitable]
    meta = {
        "models": [subject.name for subject in subjects],
        "calibrators": [None if m.calibrator is None else m.calibrator.name for m in models],
        "data": Path(data).name if isinstance(data, str | Path) else f"{len(texts):,} texts",
        "n_rows": len(texts), "seed": seed, "false_alarm_rate": FALSE_ALARM_RATE,
        "skipped": [f"{t.suite}: {t.name} (for {', '.join(sorted(t.required_labels()))})" for t in skipped],
    }  # fmt: skip
    return Robustness(**{name: pd.DataFrame(rows) for name, rows in records.items()}, meta=meta)


def _load(model: "Model | PathLike", baseline: "Model | PathLike | None") -> "list[Model]":
    from ebmcal.model import Model, load

    models = [m if isinstance(m, Model) else load(m) for m in (model, baseline) if m is not None]
    if set(models[-1].label_names) != set(models[0].label_names):
        names = [", ".join(m.label_names) for m in models]
        raise EbmcalError(f"The labels differ: {names[0]} (model), {names[1]} (baseline). Expected the same labels.")
    return models


def _sample(
    model: "Model", data: Any, text: str | None, text_pair: str | None, label: str, max_rows: int, seed: int
) -> tuple[list[Text], np.ndarray]:
    """Labelled texts, at most `max_rows` of them."""
    texts, labels, _ = model.read_rows(data, text_column=text, text_pair_column=text_pair, label_column=label)
    known = np.flatnonzero(labels >= 0)
    if not len(known):
        raise EbmcalError("No row has a label; accuracy and calibration need labels. Name their column (label_column).")
    chosen = np.sort(np.random.default_rng(seed).permutation(known)[:max_rows])
    return [texts[i] for i in chosen], labels[chosen]


def _suits(test: SuiteTest, model: "Model", texts: Sequence[Text]) -> bool:
    """Whether the model has the labels of a test; cases are single texts."""
    is_single = test.kind != "minimum-functionality" or isinstance(texts[0], str)
    return is_single and test.required_labels() <= set(model.label_names)


def _predict(model: "Model", label_names: Sequence[str], texts: Sequence[Text]) -> Predictions:
    """Predictions with the classes in one order for all models: labels are indices in that order."""
    return model.predict(list(texts), progress=False).reorder(label_names)


def _ood_rule(model: "Model") -> Callable[[Predictions], np.ndarray] | None:
    """OOD by the model's rule, else by the energies of the calibration split of its run, else unknown."""
    rule = model.abstention_rule
    if rule is not None and rule.ood is not None:
        ood = rule.ood
        return lambda predictions: p_values(ood.scores(predictions), ood.ranking)[0] <= FALSE_ALARM_RATE
    path = predictions_of_model(model.folder, "calibration")
    return energy_threshold(Predictions.read(path)) if path else None


def _named(models: "Sequence[Model]") -> "list[tuple[str, Model]]":
    """Short names: of the trial or of the directory, with a number if they are equal."""
    names = [model_name(model.folder) for model in models]
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names, 1)]
    return list(zip(names, models, strict=True))


@dataclass(frozen=True)
class Subject:
    """A model under test: how it predicts, and which predictions it flags as OOD (default: by energy)."""

    name: str
    predict: Callable[[Sequence[Text]], Predictions]
    is_ood: Callable[[Predictions], np.ndarray] | None = None


def energy_threshold(reference: Predictions) -> Callable[[Predictions], np.ndarray] | None:
    """Flags energies above those of all but `FALSE_ALARM_RATE` of the reference; None with too few energies."""
    if reference.energies is None or reference.n_rows < 1 / FALSE_ALARM_RATE:
        return None
    limit = np.quantile(reference.energies, 1 - FALSE_ALARM_RATE, method="higher")
    return lambda predictions: predictions.require_energies() > limit


@dataclass(frozen=True)
class Condition:
    """The texts of one perturbation at one strength, the same for all models."""

    perturbation: str
    title: str
    unit: str
    strength: float
    texts: list[Text]
    test: SuiteTest | None = None


def make_conditions(
    texts: Sequence[Text], names: Sequence[str], tests: Sequence[SuiteTest], tokens: TokenSource, seed: int
) -> Iterator[Condition]:
    """Every perturbation and every perturbing test at every strength; a seed always gives the same texts."""
    for name in names:
        kind = PERTURBATIONS[name]
        for share in kind.strengths:
            rng = np.random.default_rng([seed, *name.encode(), round(1000 * share)])
            perturbed = [_apply(text, lambda t: kind.apply(t, share, rng, tokens)) for text in texts]  # noqa: B023
            yield Condition(name, kind.title, kind.unit, share, perturbed)
    for test in tests:
        for amount in test.strengths if test.kind != "minimum-functionality" else ():
            rng = np.random.default_rng([seed, *test.name.encode(), amount])
            perturbed = [_apply(text, lambda t: test.perturb(t, amount, rng), both=False) for text in texts]  # noqa: B023
            unit = "words replaced" if test.replace else "sentences added"
            yield Condition(f"{test.suite}: {test.name}", test.name, unit, amount, perturbed, test)


def _apply(text: Text, perturb: Callable[[str], str], *, both: bool = True) -> Text:
    """A perturbed text; of a pair both texts, or the first."""
    if isinstance(text, str):
        return perturb(text)
    return perturb(text[0]), perturb(text[1]) if both else text[1]


def score(
    subjects: Sequence[Subject], texts: Sequence[Text], labels: np.ndarray, conditions: Sequence[Condition],
    tests: Sequence[SuiteTest], advance: Callable[[int], None] = lambda n: None,
) -> dict[str, list[Record]]:  # fmt: skip
    """All models on all conditions and tests: the rows of the four tables."""
    examples = [row for condition in conditions for row in _examples(texts, condition)]
    records: dict[str, list[Record]] = {"conditions": [], "tests": [], "failures": [], "examples": examples}
    originals = Condition("", "Original texts", "", 0.0, list(texts))
    for subject in subjects:
        original = subject.predict(texts).replace(labels=labels)
        for condition in (originals, *conditions):
            found = subject.predict(condition.texts).replace(labels=labels) if condition is not originals else original
            if condition.test is None or condition.test.kind == "invariance":
                records["conditions"].append(_condition_record(subject, condition, found, original))
            if condition.test is not None:
                outcomes = _compare(condition, condition.test, found, original, texts)
                _add_outcomes(records, subject, condition.test, condition.strength, outcomes)
            advance(len(texts))
        for test in tests:
            if test.kind == "minimum-functionality":
                cases = test.all_cases()
                found = subject.predict([case.text for case in cases])
                got = [f"{label} ({p:.2f})" for label, p in zip(found.predicted_labels, found.confidence, strict=True)]
                wrong = [label != case.label for label, case in zip(found.predicted_labels, cases, strict=True)]
                shown = [(case.text, case.label, got[i], wrong[i]) for i, case in enumerate(cases)]
                _add_outcomes(records, subject, test, 0, shown)
    return records


def _condition_record(subject: Subject, condition: Condition, found: Predictions, original: Predictions) -> Record:
    values: Record = {}
    for name, interval in metrics.summarize(found, METRIC_NAMES, N_RESAMPLES).items():
        values |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    is_ood = subject.is_ood or energy_threshold(original)
    return {
        "model": subject.name, "perturbation": condition.perturbation, "title": condition.title,
        "unit": condition.unit, "strength": condition.strength, "n_rows": found.n_rows, **values,
        "confidence": float(found.confidence.mean()),
        "energy": None if found.energies is None else float(found.energies.mean()),
        "ood": None if is_ood is None else float(is_ood(found).mean()),
        "changed_label": float((found.predicted != original.predicted).mean()),
    }  # fmt: skip


def _compare(
    condition: Condition, test: SuiteTest, found: Predictions, original: Predictions, texts: Sequence[Text]
) -> list[Outcome]:
    """The outcomes for the texts that a test changes; a directional one fails if a probability moves the wrong way."""
    rows = [i for i in range(len(texts)) if texts[i] != condition.texts[i]]
    if test.expect is None:
        before, after = original.predicted_labels, found.predicted_labels
        return [(condition.texts[i], f"{before[i]}, as before", str(after[i]), before[i] != after[i]) for i in rows]
    moves, outcomes = test.expect.moves, list[Outcome]()
    for i in rows:
        label = original.predicted_labels[i] if test.expect.label == "predicted" else test.expect.label
        old, new = (float(p.probs[i, original.label_names.index(label)]) for p in (original, found))
        is_wrong = (old - new if moves == "up" else new - old) > test.expect.tolerance
        outcomes.append((condition.texts[i], f"P({label}) {moves} from {old:.2f}", f"{new:.2f}", is_wrong))
    return outcomes


def _add_outcomes(
    records: dict[str, list[Record]], subject: Subject, test: SuiteTest, strength: float, outcomes: Sequence[Outcome]
) -> None:
    failures, n_cases = [outcome for outcome in outcomes if outcome[3]], len(outcomes)
    low, high = (float(x) for x in wilson(np.array(len(failures)), np.array(n_cases))) if n_cases else (None, None)
    key = {"model": subject.name, "suite": test.suite, "test": test.name}
    shares = {"failed": len(failures) / n_cases if n_cases else None, "failed_low": low, "failed_high": high}
    counts = {"kind": test.kind, "strength": strength, "n_cases": n_cases, "n_failed": len(failures)}
    records["tests"].append(key | counts | shares)
    for text, expected, got, _ in failures[:N_FAILURES]:
        records["failures"].append(key | {"strength": strength, "text": _shown(text), "expected": expected, "got": got})


def _examples(texts: Sequence[Text], condition: Condition) -> list[Record]:
    changed = [i for i in range(len(texts)) if texts[i] != condition.texts[i]][:N_EXAMPLES]
    key = {"perturbation": condition.perturbation, "strength": condition.strength}
    return [key | {"text": _shown(texts[i]), "perturbed": _shown(condition.texts[i])} for i in changed]


def _shown(text: Text) -> str:
    return text if isinstance(text, str) else " ⏐ ".join(text)


def condition_table(conditions: pd.DataFrame, meta: Mapping[str, Any]) -> Table:
    """Metrics by perturbation, strength and model."""
    order = {name: i for i, name in enumerate(conditions["perturbation"].unique())}
    rows = conditions.assign(order=conditions["perturbation"].map(order))
    rows = rows.sort_values(["order", "strength"], kind="stable")
    columns = {
        "title": "Texts", "strength": "Strength", "model": "Model", "accuracy": "Accuracy", "ece_top_label": "ECE",
        "nll": "NLL", "confidence": "Confidence", "energy": "Energy", "ood": "OOD", "changed_label": "Label changed",
    }  # fmt: skip
    calibrators = zip(meta["models"], meta["calibrators"], strict=True)
    notes = (
        f"{plural(meta['n_rows'], 'text')} of {meta['data']}, seed {meta['seed']}. ECE is top-label, with 20 bins.",
        "; ".join(f"{model}: {f'calibrated by {name}' if name else 'not calibrated'}" for model, name in calibrators)
        + ".",
        f"OOD: flagged at a false-alarm rate of {meta['false_alarm_rate']:.0%}.",
    )
    frame = rows[list(columns)].rename(columns=columns)
    digits: dict[Column, int | None] = {"Strength": 2, "Energy": 2}
    return Table(frame, "Perturbed texts", notes, digits=digits, sections=list(rows["perturbation"]))


def suite_table(tests: pd.DataFrame, meta: Mapping[str, Any]) -> Table:
    """Failure rates of the tests, with one column per model."""
    notes = [
        "Failed: share of cases with a wrong or changed label, or a probability that moved the wrong way. INV: "
        "invariance, DIR: directional, MFT: minimum functionality."
    ]
    notes += [f"Skipped: {'; '.join(meta['skipped'])}."] if meta["skipped"] else []
    if tests.empty:
        return Table(pd.DataFrame(), "Tests", tuple(notes))
    first = tests[tests["model"] == meta["models"][0]]  # all models have the same cases
    frame: dict[Column, list[Any]] = {
        "Test": list(first["test"]),
        "Kind": [ABBREVIATIONS[kind] for kind in first["kind"]],
        "Strength": [None if strength == 0 else str(int(strength)) for strength in first["strength"]],
        "Cases": list(first["n_cases"]),
    }
    extra: dict[Column, list[str]] = {}
    for model in meta["models"]:
        own, column = tests[tests["model"] == model], ("Failed", model)
        frame[column], ends = list(own["failed"]), zip(own["failed_low"], own["failed_high"], strict=True)
        extra[column] = ["" if pd.isna(low) else f"[{low:.3f}, {high:.3f}]" for low, high in ends]
    return Table(pd.DataFrame(frame), "Tests", tuple(notes), extra=pd.DataFrame(extra), sections=list(first["suite"]))


def make_page(found: Robustness) -> Page:
    """The page: one section per perturbation, then the tests, their failures and all numbers."""
    conditions, meta = found.conditions, found.meta
    names = [name for name in conditions["perturbation"].unique() if name]
    sections = [_section(conditions, found.examples, name, f"s{i}") for i, name in enumerate(names)]
    if not found.tests.empty:
        blocks = [suite_table(found.tests, meta)]
        failures = f"Failures (at most {N_FAILURES} per test)"
        blocks += [_text_table(found.failures, failures)] if len(found.failures) else []
        sections.append(Section("Tests", blocks))
    sections.append(Section("All numbers", [condition_table(conditions, meta)], collapsed=True))
    lead = f"{plural(meta['n_rows'], 'text')} of {meta['data']}, perturbed with seed {meta['seed']}."
    return Page(f"Robustness: {' and '.join(meta['models'])}", lead, sections)


def _section(conditions: pd.DataFrame, examples: pd.DataFrame, name: str, key: str) -> Section:
    own = conditions[conditions["perturbation"] == name]
    title, unit = own["title"].iloc[0], own["unit"].iloc[0]
    rows = conditions[conditions["perturbation"].isin(["", name])].sort_values("strength", kind="stable")
    pictures: list[Picture] = []
    for heading, caption, columns in PICTURES:
        lines = {column: _series(rows, column) for column in columns}
        panels = [partial(line_plot, line, x=unit, y=columns[column]) for column, line in lines.items() if line]
        if panels:
            pictures.append(draw(f"{key}-{len(pictures)}", f"{title}: {heading}", caption, *panels))
    shown = examples[examples["perturbation"] == name] if len(examples) else examples
    return Section(title, [Block("pictures", pictures), *([_text_table(shown, "Examples")] if len(shown) else [])])


def _series(rows: pd.DataFrame, column: str) -> list[Series]:
    """One line per model; energies are relative to those of the original texts."""
    found = []
    for model, own in rows.groupby("model", sort=False):
        values = own[column].to_numpy(dtype=float)
        if np.isnan(values).any():
            continue
        values = values - values[0] if column == "energy" else values
        ends = [own[name].to_numpy(dtype=float) for name in (f"{column}_low", f"{column}_high") if name in own]
        found.append(Series(str(model), own["strength"].to_numpy(dtype=float), values, *ends))
    return found


def _text_table(rows: pd.DataFrame, title: str) -> Table:
    columns = [c for c in ("model", "test", "strength", "text", "perturbed", "expected", "got") if c in rows.columns]
    names = {column: column.capitalize() for column in columns}
    return Table(rows[columns].rename(columns=names).reset_index(drop=True), title, digits={"Strength": 2})
