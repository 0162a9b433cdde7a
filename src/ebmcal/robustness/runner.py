# ruff: noqa: PT028  # test_robustness is not a test of pytest
"""`test_robustness`: one model, or a model and a baseline, on perturbations of labelled texts and on test suites."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.progress import make_reporter
from ebmcal.robustness.page import condition_table, make_page, test_table
from ebmcal.robustness.perturbations import PERTURBATIONS, TokenizerSource
from ebmcal.robustness.scoring import FALSE_ALARM_RATE, Subject, Text, energy_threshold, make_conditions, score
from ebmcal.robustness.suite import SuiteTest, builtin_suites, read_suite
from ebmcal.run_dir import RunDir, predictions_of_model
from ebmcal.storage import PathLike

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.model import Model
    from ebmcal.reports.tables.table import Table


@dataclass(frozen=True, repr=False)
class Robustness:
    """The result of `test_robustness`; `ebmcal.robustness.scoring` lists the columns of the tables."""

    conditions: "pd.DataFrame"
    tests: "pd.DataFrame"
    failures: "pd.DataFrame"
    examples: "pd.DataFrame"
    meta: dict[str, Any]

    def tables(self) -> "list[Table]":
        """Metrics by perturbation and strength, and the failure rates of the tests."""
        made = [condition_table(self.conditions, self.meta), test_table(self.tests, self.meta)]
        return [table for table in made if len(table)]

    def to_json(self) -> str:
        """Everything as one JSON object."""
        names = ("conditions", "tests", "failures", "examples")
        records = {name: json.loads(getattr(self, name).to_json(orient="records")) for name in names}
        return json.dumps(self.meta | records, indent=2, ensure_ascii=False, allow_nan=False)

    def report(self, path: PathLike) -> Path:
        """Write a self-contained HTML page; returns its path."""
        from ebmcal.reports.page import write_page

        return write_page(path, make_page(self.conditions, self.tests, self.failures, self.examples, self.meta))

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))


def test_robustness(
    model: "Model | PathLike",
    data: Any,
    *,
    baseline: "Model | PathLike | None" = None,
    perturbations: Sequence[str] | None = None,
    suites: Sequence[PathLike] = (),
    use_builtin_suites: bool = True,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str = "label",
    max_rows: int = 500,
    seed: int = 0,
    progress: bool | None = None,
) -> Robustness:
    """Evaluate a model on perturbed texts: accuracy, calibration, energy and OOD share by strength, and test suites.

    `data` is anything that `Model.predict` takes, with labels; at most `max_rows` rows are sampled. `perturbations` are
    names from `PERTURBATIONS` (default: all), `suites` are YAML files with your own tests, `baseline` is another model
    with the same labels, evaluated on the same texts. The same seed gives the same texts.

        ebmcal.test_robustness("model", "test.csv", baseline="baseline").report("robustness.html")
    """
    names = list(PERTURBATIONS) if perturbations is None else list(perturbations)
    unknown = next((name for name in names if name not in PERTURBATIONS), None)
    if unknown is not None:
        raise unknown_name("perturbation", unknown, PERTURBATIONS)
    tests = [t for path in [*(builtin_suites() if use_builtin_suites else []), *suites] for t in read_suite(path)]
    if not names and not tests:
        raise EbmcalError("Nothing to test: no perturbations and no suites were given.")
    models = _load(model, baseline)
    texts, labels = _sample(models[0], data, text_column, text_pair_column, label_column, max_rows, seed)
    suitable = [test for test in tests if _suits(test, models[0], texts)]
    tokens = TokenizerSource(models[0].predictor.tokenizer)
    conditions = list(make_conditions(texts, names, suitable, tokens, seed))
    subjects = [Subject(name, _predict(m, models[0].label_names), _ood_rule(m)) for name, m in _named(models)]
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
    return _as_frames(vars(records), meta)


test_robustness.__test__ = False  # type: ignore[attr-defined]  # not a test of pytest


def _as_frames(records: dict[str, Any], meta: dict[str, Any]) -> Robustness:
    import pandas as pd

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
    from ebmcal.data import as_dataset

    if text is None and text_pair is None:
        text, text_pair = model.card.get("text_column"), model.card.get("text_pair_column")
    rows = as_dataset(
        data, text_column=text, text_pair_column=text_pair, label_column=label, label_names=model.label_names
    )
    labels = np.asarray(rows["label"])
    known = np.flatnonzero(labels >= 0)
    if not len(known):
        raise EbmcalError("No row has a label; accuracy and calibration need labels. Name their column (label_column).")
    chosen = np.sort(np.random.default_rng(seed).permutation(known)[:max_rows])
    kept = rows.select(chosen)
    is_pair = "text_pair" in kept.column_names
    texts: list[Text] = list(zip(kept["text"], kept["text_pair"], strict=True)) if is_pair else list(kept["text"])
    return texts, labels[chosen]


def _suits(test: SuiteTest, model: "Model", texts: Sequence[Text]) -> bool:
    """Whether the model has the labels of a test; cases are single texts."""
    return test.applies_to(model.label_names) and (test.kind != "minimum-functionality" or isinstance(texts[0], str))


def _predict(model: "Model", label_names: Sequence[str]) -> Callable[[Sequence[Text]], Predictions]:
    """Predictions with the classes in one order for all models: labels are indices in that order."""
    return lambda texts: model.predict(list(texts), progress=False).reorder(label_names)


def _ood_rule(model: "Model") -> Callable[[Predictions], np.ndarray] | None:
    """OOD by the model's rule, else by the energies of the calibration split of its run, else unknown."""
    rule = model.abstention_rule
    if rule is not None and rule.ood is not None:
        ood = rule.ood
        return lambda predictions: ood.p_values(ood.scores(predictions)) <= FALSE_ALARM_RATE
    path = predictions_of_model(model.folder, "calibration")
    return energy_threshold(Predictions.read(path)) if path else None


def _named(models: "Sequence[Model]") -> "list[tuple[str, Model]]":
    """Short names: of the trial or of the directory, with a number if they are equal."""
    places = [RunDir.containing(model.folder) for model in models]
    names = [p[1].name if p else m.folder.resolve().name for p, m in zip(places, models, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({i})" for i, name in enumerate(names, 1)]
    return list(zip(names, models, strict=True))
