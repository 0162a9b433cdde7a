"""`run` trains, calibrates and evaluates the models of a task; `Run` gives access to what it produced."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebmcal.advice import label_issue_advice
from ebmcal.config import RunConfig, continued_config, load_config
from ebmcal.data import DataConfig, check_sources, find_task, row_places
from ebmcal.data.files import check_file
from ebmcal.errors import EbmcalError, require_extra, unknown_name
from ebmcal.predictions import Predictions
from ebmcal.progress import make_reporter
from ebmcal.run_dir import FROZEN_PROBE, RunDir, Trial
from ebmcal.storage import TemporaryDirectory, locked, read_json

if TYPE_CHECKING:
    import pandas as pd

    from ebmcal.evaluation import Evaluation
    from ebmcal.model import Model
    from ebmcal.reports.page import Table

#: Rows: a path, (texts, labels), a dict of columns, a data frame, an Arrow table or a `datasets.Dataset`.
Data = Any


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory: results, models and predictions. Made by `run` and `open_run`.

    run = ebmcal.open_run("runs/mine")
    run.table(), run.advice, run.recommended.predict(["a text"]).probs
    """

    folder: Path
    owner: Any = None  # of a temporary directory, which lives as long as this object

    @property
    def directory(self) -> RunDir:
        """The paths of the run directory."""
        return RunDir(self.folder)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The contents of `results.json`."""
        if not self.directory.results.is_file():
            raise EbmcalError(f"The run {self.folder} is not finished: it has no results.json. Run it again.")
        document: dict[str, Any] = read_json(self.directory.results)
        return document

    @cached_property
    def evaluation(self) -> "Evaluation":
        """Everything that was measured, as tidy data frames."""
        from ebmcal.evaluation import Evaluation

        return Evaluation.from_json(self.document)

    @property
    def results(self) -> "pd.DataFrame":
        """One row per model, calibrator, test set and metric, with its interval."""
        return self.evaluation.results

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.directory.report

    @property
    def trials(self) -> list[Trial]:
        """Method and seed of every model, the frozen probe last."""
        return self.directory.models()

    @property
    def advice(self) -> list[str]:
        """The recommendation, in sentences."""
        found = list((self.document.get("advice") or {}).get("sentences", ()))
        n_issues = len(self.document.get("label_issues") or ())
        more = f"{label_issue_advice(n_issues)} See 'Label issues' in the report."
        return found + ([more] if n_issues else [])

    @property
    def label_issues(self) -> "pd.DataFrame":
        """Training rows whose label contradicts the rest of the data: id, place, text, given, suggested, score.

        `place` is the line or row of the training file, or the row's own id (`id_column`).
        """
        import pandas as pd

        columns = ["id", "text", "given", "suggested", "score"]
        issues = pd.DataFrame(self.document.get("label_issues") or [], columns=columns)
        issues.insert(1, "place", row_places(issues["id"], self.document.get("audit")))
        return issues

    @property
    def recommended(self) -> "Model":
        """The recommended model, calibrated."""
        return self._load(self.folder)

    def table(self, *, verbose: bool = False) -> "Table":
        """The results as a table that prints itself; `verbose` adds (train) rows and intervals."""
        return self.evaluation.table(verbose=verbose)

    def model(self, method: str | None = None, seed: int | None = None) -> "Model":
        """The model of a method (default: the only one) and a seed (default: the first)."""
        return self._load(self.directory.model(self._trial(method, seed)))

    def predictions(self, method: str | None = None, split: str = "test", seed: int | None = None) -> Predictions:
        """The predictions of a model on a split: train, calibration, out_of_fold, test, noise or ood_NAME."""
        trial = self._trial(method, seed)
        if split not in self.directory.splits(trial):
            raise unknown_name(f"split of {trial.name}", split, self.directory.splits(trial))
        return Predictions.read(self.directory.predictions(trial, split))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {', '.join(trial.name for trial in self.trials)})"

    def _load(self, folder: Path) -> "Model":
        from ebmcal.model import load

        return replace(load(folder), owner=self)

    def _trial(self, method: str | None, seed: int | None) -> Trial:
        known = self.directory.trials() or self.trials
        methods = dict.fromkeys(trial.method for trial in known if method or trial.method != FROZEN_PROBE)
        if method is None and len(methods) != 1:
            raise EbmcalError(f"Choose a method of {self.folder}: {', '.join(methods) or 'none yet'}.")
        if method is not None and method not in methods:
            raise unknown_name(f"method of {self.folder}", method, methods)
        seeds = {t.seed: t for t in sorted(known) if t.method == (method or next(iter(methods)))}
        if seed is not None and seed not in seeds:
            raise EbmcalError(f"{self.folder} has no seed {seed}; it has {', '.join(map(str, seeds))}.")
        return next(iter(seeds.values())) if seed is None else seeds[seed]


def open_run(folder: str | os.PathLike[str]) -> Run:
    """A run that was made earlier, from Python or on the command line.

    ebmcal.open_run("runs/mine").table()
    """
    folder = Path(folder).expanduser()
    if not RunDir(folder).config.is_file():
        raise EbmcalError(f"{folder} is not a run directory: it has no config.yaml. Pass the output of a run.")
    return Run(folder)


def run(
    train: Data = None,
    *,
    test: Data = None,
    calibration: Data = "auto",
    folds: int | None = None,
    task: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    encoder: str = "minilm",
    methods: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] = 1,
    noise: str | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    energy_weight: float | None = None,
    ood: Mapping[str, Data] | None = None,
    output: str | os.PathLike[str] | None = None,
    config: RunConfig | str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Run:
    """Train, calibrate and evaluate models; the same call with the same `output` continues where it stopped.

    Args:
        train: Labelled rows: a file, (texts, labels), a dict of columns, a data frame, an Arrow table or a
            `datasets.Dataset`. Or use `task`.
        test: Labelled rows to evaluate on. Default: a tenth of the training rows.
        calibration: Rows to calibrate on; "cross-fit" (the default without them) uses the training rows and gives
            none up, "holdout" sets a tenth of them aside.
        folds: Folds of cross-fitting. Default: 5, or 10 to 20% of large data once.
        task: A built-in task, see `ebmcal tasks`; its files are in `data_dir`.
        data_dir: The directory with the files of the task.
        text_column: The column of the text.
        text_pair_column: The column of the second text, for pairs.
        label_column: The column of the label.
        id_column: The column with row ids, kept in predictions.
        encoder: minilm or mpnet (built in), a model directory, or a hub name.
        methods: Training methods, see `ebmcal.methods.METHODS`. Default: baseline and hidden.
        seeds: One model per method and seed.
        noise: Noise sources, such as "splice", "infill:smollm2" or "splice 0.8, unrelated 0.2".
        epochs: Passes over the training rows. Default: from the number of rows.
        batch_size: Data texts per step.
        learning_rate: Peak learning rate.
        max_length: Maximum tokens per text.
        energy_weight: Weight of the energy loss, the paper's λ.
        ood: Texts from elsewhere, by name, to measure OOD detection with.
        output: The run directory. Default: a temporary one that lives as long as the returned object.
        config: A `RunConfig` or a YAML file; the other arguments override it.
        settings: Any other field of `RunConfig` by name.
        progress: Report progress: bars on terminals and in notebooks, lines elsewhere. False: only in `log.txt`.

    Example:
        run = ebmcal.run((texts, labels), output="runs/mine")
        run.recommended.predict(["a text"]).probs
    """
    given: dict[str, Any] = {
        "folds": folds, "task": task, "data_dir": data_dir, "text_column": text_column,
        "text_pair_column": text_pair_column, "label_column": label_column, "id_column": id_column,
        "encoder": None if encoder == "minilm" else encoder, "methods": methods,
        "seeds": None if seeds == 1 else seeds, "noise": noise, "epochs": epochs, "batch_size": batch_size,
        "learning_rate": learning_rate, "max_length": max_length, "energy_weight": energy_weight, "output": output,
    }  # fmt: skip
    values = {name: value for name, value in given.items() if value is not None} | dict(settings or {})
    is_default = isinstance(calibration, str) and calibration == "auto"
    files, in_memory = _divide({"train": train, "test": test, "calibration": None if is_default else calibration})
    ood_files, ood_in_memory = _divide(ood or {})
    values |= files | ({"ood": ood_files} if ood_files else {})
    if isinstance(config, RunConfig):
        values = {name: getattr(config, name) for name in config.model_fields_set} | values
        config = None
    loaded = load_config(None if config is None else Path(config).expanduser(), values)
    return start_run(loaded, in_memory | ({"ood": ood_in_memory} if ood_in_memory else {}), progress=progress)


def _divide(data: Mapping[str, Data]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Paths, and objects in memory."""
    given = {name: value for name, value in data.items() if value is not None}
    files = {name: value for name, value in given.items() if isinstance(value, str | os.PathLike)}
    return files, {name: value for name, value in given.items() if name not in files}


def start_run(config: RunConfig, in_memory: Mapping[str, Any] | None = None, *, progress: bool | None = None) -> Run:
    """`run` with a complete config; `in_memory` holds data that is not in files."""
    require_extra("train", "torch", "transformers", "datasets")
    owner = None
    if config.output is None:
        owner = TemporaryDirectory()
        config = config.model_copy(update={"output": owner.path / "run", "cache_dir": owner.path / "cache"})
    assert config.output is not None
    output = config.output.expanduser()
    _check(config, output, in_memory or {})
    reporter = make_reporter(progress is not False, RunDir(output).log)
    if (recorded := RunDir(output).config).is_file():
        given, config = config, continued_config(config, recorded)
        kept = {name: value for name, value in config if value != getattr(given, name)}
        if kept:
            shown = ", ".join(f"{name}={value}" for name, value in kept.items())
            reporter.info(f"run: continuing with the settings of {output}: {shown}")
    from ebmcal.pipeline import run_stages  # imports torch, which takes seconds

    run_stages(config.model_copy(update={"output": output}), reporter, in_memory)
    return Run(output, owner)


def _check(config: RunConfig, output: Path, in_memory: Mapping[str, Any]) -> None:
    """Raise for what is wrong with files, columns and the output directory; takes milliseconds."""
    is_in_files = not config.task or find_task(config.task).files
    if is_in_files and not in_memory and not config.hub:
        check_sources(DataConfig.from_run(config, {}))
    for path in config.ood.values():
        check_file(Path(path).expanduser())
    RunDir(output).check()
    if os.environ.get("RANK", "0") == "0":  # other processes of a distributed run do not lock it
        with locked(output):
            pass
