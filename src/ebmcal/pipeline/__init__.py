"""`run_stages`: the stages of `ebmcal run`, each done once. The same call again continues where it stopped.

data → noise → (train → predict → cross-fit) for each trial → frozen probe → evaluation → recommendation → report
"""

import platform
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ebmcal.advice import Advice, recommend
from ebmcal.calibration import FewRowsWarning, make_calibrator, save_calibrator
from ebmcal.config import RunConfig
from ebmcal.evaluation import evaluate_trials
from ebmcal.modeling.pretrained import ENCODER_NOTES
from ebmcal.pipeline.cross_fit import SPLIT, describe_cost, ensure_cross_fitted, find_label_issues, run_folds
from ebmcal.pipeline.trials import FROZEN, ensure_predicted, ensure_probed, ensure_trained
from ebmcal.pipeline.workspace import Workspace, open_workspace
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.reports import write_model_card, write_report
from ebmcal.reports.plots import energy_histogram
from ebmcal.run_dir import RunDir, Trial, read_card, update_card
from ebmcal.storage import write_json
from ebmcal.training.runtime import is_main_process

#: Label issues that are stored and reported, at most.
MAX_LABEL_ISSUES = 200


def run_stages(config: RunConfig, reporter: Reporter, in_memory: Mapping[str, Any] | None = None) -> None:
    """Do what is not done yet of a run."""
    with open_workspace(config, reporter, dict(in_memory or {})) as work:
        folds = run_folds(work)
        if folds is not None:
            reporter.info(describe_cost(folds))
        for trial in work.trials:
            ensure_trained(work, trial)
            if config.only is None and is_main_process():
                ensure_predicted(work, trial)
            if folds is not None:
                ensure_cross_fitted(work, trial, folds)
        if config.only is None and is_main_process():
            ensure_probed(work, folds)
            conclude(work)


def conclude(work: Workspace) -> None:
    """Evaluate all finished trials of the run directory, recommend a model, and write results and report."""
    directory = work.directory
    predictions = {
        trial: {split: Predictions.read(directory.predictions(trial, split)) for split in directory.splits(trial)}
        for trial in directory.trials()
        if _is_finished(work, trial)
    }
    evaluation = evaluate_trials(predictions, posthoc=work.config.posthoc)
    advice = _with_probe(recommend({t: s for t, s in predictions.items() if t != FROZEN}), predictions)
    results = evaluation.to_json() | {
        "task": work.data.name,
        "task_metric": work.data.metric,
        "label_names": list(work.data.label_names),
        "encoder": work.config.encoder,
        "encoder_note": ENCODER_NOTES.get(work.config.encoder),
        "versions": _versions(),
        "audit": work.data.audit,
        "noise": work.noise.description if work.noise else None,
        "training": {t.name: read_card(directory.model(t)).get("training") for t in predictions if t != FROZEN},
        "advice": advice.to_json(),
        "recommended": {"trial": advice.trial.name, "calibrator": advice.calibrator},
        "label_issues": _label_issues(predictions.get(advice.trial, {})),
    }
    _store_calibrator(directory, advice.trial, advice.calibrator, predictions[advice.trial])
    if work.noise:
        write_json(directory.noise_examples, work.noise.examples())
    write_json(directory.results, results)
    for trial, splits in predictions.items():
        if trial != FROZEN:
            histogram = energy_histogram(splits)
            update_card(directory.model(trial), histograms=histogram and histogram.to_json())
            write_model_card(directory.model(trial))
    work.reporter.info(f"report: {write_report(directory.root)}")


def _with_probe(advice: Advice, predictions: Mapping[Trial, Mapping[str, Predictions]]) -> Advice:
    """Add a sentence if the frozen probe is more accurate than the recommended model on the rows it was chosen on."""
    split = next((s for s in (SPLIT, "calibration") if s in predictions.get(FROZEN, {})), None)
    if split is None or split not in predictions[advice.trial]:
        return advice
    probe, model = (_accuracy(predictions[trial][split]) for trial in (FROZEN, advice.trial))
    if probe <= model:
        return advice
    sentence = (
        f"A logistic regression on the frozen encoder is more accurate ({probe:.1%} against {model:.1%} on the same "
        "rows): finetuning was not worth it. Try more epochs, or more rows."
    )
    return replace(advice, sentences=(*advice.sentences, sentence))


def _accuracy(predictions: Predictions) -> float:
    rows = predictions.labelled()
    return float((rows.predicted == rows.labels).mean())


def _is_finished(work: Workspace, trial: Trial) -> bool:
    splits = work.directory.splits(trial)
    return all(split in splits for split in work.data.splits if split.startswith("test"))


def _label_issues(splits: Mapping[str, Predictions]) -> list[dict[str, Any]]:
    if SPLIT not in splits:
        return []
    issues: list[dict[str, Any]] = find_label_issues(splits[SPLIT]).head(MAX_LABEL_ISSUES).to_dict("records")
    return issues


def _store_calibrator(
    directory: RunDir, trial: Trial, calibrator: str | None, splits: Mapping[str, Predictions]
) -> None:
    """Store the recommended calibrator with the recommended model, fitted on the rows it was chosen on."""
    if calibrator is None:
        return
    rows = splits[SPLIT] if SPLIT in splits else splits["calibration"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewRowsWarning)  # the advice says so already
        fitted = make_calibrator(calibrator.partition(" ")[0]).fit_predictions(rows)
    save_calibrator(directory.model(trial), fitted)


def _versions() -> dict[str, str]:
    """Versions of what the results depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("ebmcal", "torch", "transformers", "numpy", "scipy", "scikit-learn", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
