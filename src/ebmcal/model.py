"""A trained classifier, ready for texts: `load` it, `predict`, `calibrate` it on held-out rows, `save` it.

The calibrator that is kept in the folder is applied, and the predictions say so. A temperature that was folded into the
weights is taken out of the energies again, so that they stay comparable.
"""

import contextlib
import functools
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from ebmcal.calibrators import Calibrator, attach, attached, make_calibrator
from ebmcal.calibrators.base import logits_in
from ebmcal.calibrators.held_out import require_held_out
from ebmcal.calibrators.in_model import FILE_NAME, attach_folded, require_same_fold
from ebmcal.calibrators.weights import folded_temperature, model_fingerprint
from ebmcal.data.given import given_rows
from ebmcal.data.values import Columns
from ebmcal.decisions import RULE_FILE, Rule, attach_rule, attached_rule
from ebmcal.decisions.in_model import bound_rule, calibrator_fingerprint
from ebmcal.decisions.unusual import KEPT_TEXTS, NEAREST, TrainingFeatures
from ebmcal.errors import EbmcalError
from ebmcal.metrics.distances import DISTANCES, NEIGHBOURS
from ebmcal.models.classifier import CARD_FILE, EnergyClassifier, EnergyScale
from ebmcal.models.energies import ENERGIES
from ebmcal.models.folders import KEPT, folder_of, longest_read, require_classifier
from ebmcal.models.loading import best_device, check_folder
from ebmcal.models.scoring import features, predict
from ebmcal.models.sngp import GaussianProcess
from ebmcal.models.tokens import Row, tokenize_in_memory
from ebmcal.predictions import Predictions
from ebmcal.progress import Console, Reporter
from ebmcal.report.model_card import CARD_FILES
from ebmcal.storage.atomic import read_json
from ebmcal.storage.sealing import SEAL, require_whole, writing_folder

#: Keywords that name the columns of a file or a table.
COLUMN_OPTIONS = ("text_column", "text_pair_column", "label_column")

#: Share of held-out texts that may be training texts as well, by chance: short ones are written twice.
SAME_TEXTS = 0.1


def load(name: str | Path, *, device: str | None = None, progress: bool = False) -> "Model":
    """The classifier in a folder (of a run, or any sequence classifier that transformers saved), or of a hub name.

    `device` is where it computes: a GPU by default, where there is one. `progress` says what comes from the hub.

        model = ebmcal.load("runs/a/checkpoints/hidden-seed1/model")
        model.predict(["a text", "another"]).probs
    """
    folder = folder_of(name, Console() if progress else Reporter())
    require_whole(folder)
    check_folder(f"The model folder {folder}", folder)
    require_classifier(folder)
    classifier = EnergyClassifier.from_pretrained(folder)
    classifier.to(device or best_device()).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    max_length = longest_read(folder, tokenizer, classifier)
    return Model(classifier, tokenizer, folder, max_length, folded_temperature(folder), attached(folder))


@dataclass(frozen=True, eq=False)
class Model:
    """A classifier, its tokenizer and its energy, with the calibrator that is kept with it; made by `load`.

    Wherever it takes texts, it takes a list of texts or of (text, text) pairs, an iterator of them, or the path of a
    file (CSV, TSV, JSONL, Parquet), whose columns are named by keyword.

        model = ebmcal.load("model")
        p = model.predict([("a premise", "a hypothesis")])
        p.probs, p.energies  # [n, C], [n]
    """

    classifier: EnergyClassifier
    tokenizer: Any
    folder: Path
    max_length: int  # tokens of a text that are read; what is longer is cut
    folded_temperature: float | None = None  # that the weights of the last layer were divided by
    calibrator: Calibrator | None = None
    owner: Any = None  # of a temporary folder, which lives as long as this model
    fitted_rule: Rule | None = None  # by `fit_rule`, in place of the one in the folder

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of the columns of `probs`."""
        config = self.classifier.config
        return tuple(str(config.id2label[i]) for i in range(config.num_labels))

    @functools.cached_property
    def rule(self) -> Rule | None:
        """The rule to decide by: fitted here, or kept in the folder; refuses one of another model or calibrator."""
        if self.fitted_rule is not None:
            return self.fitted_rule
        kept = attached_rule(self.folder)
        is_ours = kept is None or kept.calibrator == calibrator_fingerprint(self.calibrator)
        return kept if is_ours else None  # calibrated anew in memory: the rule in the folder is not for it

    @functools.cached_property
    def is_pair(self) -> bool | None:
        """Whether it was trained on pairs of texts; None of models that do not say, and of earlier versions."""
        card = read_json(self.folder / CARD_FILE) if (self.folder / CARD_FILE).exists() else {}
        found = card.get("is_pair")
        return None if found is None else bool(found)

    @functools.cached_property
    def weights(self) -> str:
        """What stands for the weights in the folder; predictions carry it, so that they can be told from others'."""
        return model_fingerprint(self.folder)

    def __repr__(self) -> str:
        calibrated = f", calibrated by {self.calibrator.name}" if self.calibrator else ""
        return f"Model({str(self.folder)!r}: {', '.join(self.label_names)}{calibrated})"

    def predict(
        self,
        texts: Any,
        *,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        calibrated: bool = True,
        progress: bool = False,
        dropout_seed: int | None = None,
    ) -> Predictions:
        """Labels, probabilities and energies of all texts, by the calibrator that is kept unless told otherwise.

        Of a file or a table, the columns are those that the model was trained on unless they are named; else `text`.
        `labels` of the result are those of `label_column`, -1 where there is none; `labels_` are the predicted names.
        A `dropout_seed` leaves dropout on: a pass of Monte-Carlo dropout (see `ebmcal.Ensemble`).
        """
        rows = given_rows(texts, self.columns_of(text_column, text_pair_column, label_column), self.label_names)
        self._check_kind(rows.texts)
        reporter = Console() if progress else Reporter()
        measure = None if dropout_seed is not None else self.measure
        meta = {
            "model": str(self.folder),
            "weights": self.weights,
            **(_mark(self.rule) if measure else {}),
            **rows.meta,
        }
        with reporter.stage(f"{self.folder.name} on {rows.name}", len(rows.texts)) as advance:
            predictions = predict(
                self.classifier, tokenize_in_memory(rows.texts, self.tokenizer, self.max_length),
                labels=rows.labels, label_names=self.label_names, ids=rows.ids, texts=rows.texts,
                meta=meta, progress=advance, dropout_seed=dropout_seed, distances=measure,
            )  # fmt: skip
        return self.finished(predictions, calibrated=calibrated)

    @property
    def measure(self) -> Callable[[np.ndarray], dict[str, np.ndarray]] | None:
        """Features [n, H] → the distance [n] by which the rule tells unusual texts, by name; None where it has none."""
        with contextlib.suppress(EbmcalError):  # a rule of another model or calibrator: whoever decides by it says so
            return self.rule.unusual.measure if self.rule is not None and self.rule.unusual is not None else None
        return None

    def features(self, rows: Sequence[Row], *, name: str = "texts", progress: bool = False) -> np.ndarray:
        """Mean states half-way up the encoder [n, H] of (text, second text or None) rows: what distances are of."""
        self._check_kind(rows)
        table = tokenize_in_memory(rows, self.tokenizer, self.max_length)
        with (Console() if progress else Reporter()).stage(f"features of {name}", len(rows)) as advance:
            return features(self.classifier.encoder, table, progress=advance, middle=True)

    def measured(
        self, rows: Predictions, by: str, training: Any, *, progress: bool = False
    ) -> tuple[Predictions, TrainingFeatures]:
        """Predictions with the distance `by` of their texts to training texts, and the features it is measured from.

        `training` is `Predictions` of them, or anything that `predict` takes, with a column `label` for mahalanobis.
        """
        texts = _texts_of(rows, "held-out rows")
        if isinstance(training, Predictions):
            known, labels = _texts_of(training, "training rows"), training.labels
        else:
            columns = self.columns_of(None, None, "label" if by == "mahalanobis" else None)
            given = given_rows(training, columns, self.label_names)
            known, labels = given.texts, given.labels
        if len(known) < NEIGHBOURS:
            raise EbmcalError(
                f"{len(known)} training texts are too few to measure distances from; give {NEIGHBOURS} or more, better "
                f"hundreds (up to {KEPT_TEXTS:,} are kept)."
            )
        _require_same_kind(texts, known)
        _require_apart(texts, known)
        chosen = np.linspace(0, len(known) - 1, min(KEPT_TEXTS, len(known))).astype(int)
        found = self.features([known[i] for i in chosen], name="training texts", progress=progress)
        kept = TrainingFeatures.of(found, labels[chosen])
        distance = kept.distance(by)
        return replace(
            rows, distances={by: distance(self.features(texts, name="held-out texts", progress=progress))}
        ), kept

    def with_distances(self, rows: Predictions, rule: Rule) -> Predictions:
        """Predictions for texts with the distance by which a rule tells unusual ones, where it needs one."""
        if rule.unusual is None or rule.unusual.measure is None:
            return rows
        far = rule.unusual.measure(self.features(_texts_of(rows, "rows")))
        return replace(rows, distances=far, meta=rows.meta | _mark(rule))

    def finished(self, predictions: Predictions, *, calibrated: bool = True) -> Predictions:
        """What `predict` makes of the classifier's own logits and energies: folding undone, calibrator applied."""
        predictions = self._unfolded(predictions)
        return self.calibrator.apply(predictions) if calibrated and self.calibrator else predictions

    def predict_proba(self, texts: Any, **options: Any) -> np.ndarray:
        """P(y|x) [n, C] of texts; options as in `predict`."""
        return self.predict(texts, **options).probs

    def stream(self, texts: Iterable[Any], *, n_rows: int = 4096, calibrated: bool = True) -> Iterator[Predictions]:
        """`predict` over an iterator that does not fit in memory, `n_rows` texts at a time; ids count on."""
        if not isinstance(n_rows, int) or n_rows < 1:
            raise EbmcalError(f"n_rows is {n_rows!r}; it must be a whole number, 1 or more.")
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise EbmcalError(f"stream takes an iterator of texts or pairs; {type(texts).__name__} came. See predict.")
        texts, done = iter(texts), 0
        while chunk := list(islice(texts, n_rows)):
            found = self.predict(chunk, calibrated=calibrated)
            yield replace(found, ids=np.arange(done, done + len(chunk)).astype(str))
            done += len(chunk)

    def predict_rows(self, texts: list[Any], *, calibrated: bool = True) -> tuple[Predictions, None]:
        """`predict`, as `ebmcal.streaming` asks for it."""
        return self.predict(texts, calibrated=calibrated), None

    def fingerprint(self) -> dict[str, Any]:
        """What stands for the weights and the calibrator."""
        return {"weights": self.weights, "calibrator": calibrator_fingerprint(self.calibrator)}

    def energy(self, texts: Any, **options: Any) -> np.ndarray:
        """Energies of texts [n]: low = like the data the model was trained on; options as in `predict`."""
        return self.predict(texts, calibrated=False, **options).require_energies()

    def _check_kind(self, rows: Sequence[Row]) -> None:
        """Refuse pairs where the model was trained on single texts, and the other way round."""
        trained = self.is_pair
        if trained is not None and trained != (rows[0][1] is not None):
            kinds = "pairs of texts, and single texts" if trained else "single texts, and pairs"
            how = "Give (text, text) pairs, or a file with text_pair_column." if trained else "Give one text a row."
            raise EbmcalError(f"The model {self.folder} was trained on {kinds} came. {how}")

    def columns_of(self, text: str | None, pair: str | None, label: str | None) -> Columns:
        """The columns of a file that are read: those named, else those the model was trained on, else `text`."""
        card = read_json(self.folder / CARD_FILE) if (self.folder / CARD_FILE).exists() else {}
        if text is None and pair is None:
            text, pair = card.get("text_column"), card.get("text_pair_column")
        return Columns(text or "text", pair, label)

    def calibrate(
        self,
        held_out: Any,
        calibrator: str | Calibrator = "temperature",
        *,
        allow_mismatch: bool = False,
        **columns: Any,
    ) -> "Model":
        """The same model with a calibrator fitted on labelled rows that it was not trained on.

        `held_out` is this model's own `Predictions`, uncalibrated and with labels, or anything that `predict` takes,
        with a label for each text (column `label`, unless `label_column` names another). Predictions that say they are
        of the training rows or of another model are refused unless `allow_mismatch`.
        """
        if not isinstance(held_out, Predictions):
            held_out = self.predict(held_out, calibrated=False, **{"label_column": "label"} | columns)
        self._require_own(held_out)
        require_held_out(held_out.labelled(), self.folder, "held_out", allow_mismatch=allow_mismatch)
        unfitted = make_calibrator(calibrator) if isinstance(calibrator, str) else calibrator
        return replace(self, calibrator=unfitted.fit_predictions(held_out), fitted_rule=None)

    def fit_rule(self, held_out: Any, **promises: Any) -> "Model":
        """The same model with a rule fitted on labelled rows that neither it nor its calibrator has seen.

        `held_out` as in `predict`, with a label for each text (column `label`, unless `label_column` names another);
        `promises` are those of `ebmcal.decisions.fit_rule`: max_error, confidence, score, coverage, false_alarms,
        unusual_by, for whose distances `training` are the training texts.

            model.fit_rule(held_out, max_error=0.05).rule.decide(model.predict(texts)).answers
        """
        names = {name: promises.pop(name) for name in COLUMN_OPTIONS if name in promises}
        if not isinstance(held_out, Predictions):
            held_out = self.predict(held_out, calibrated=False, **{"label_column": "label"} | names)
        self._require_own(held_out)
        by, training = promises.get("unusual_by"), promises.pop("training", None)
        by = NEAREST if by is None and training is not None else by
        if by in DISTANCES:
            if training is None:
                raise EbmcalError(f"unusual_by={by!r} measures distances from training texts: give them as training=.")
            held_out, promises["training"] = self.measured(held_out, by, training)
        return replace(self, fitted_rule=bound_rule(self.folder, held_out, self.calibrator, **promises))

    def _require_own(self, held_out: Predictions) -> None:
        """Refuse held-out predictions that are calibrated already, of other classes, or of other weights."""
        if held_out.meta.get("calibrator"):
            raise EbmcalError(
                "The held-out predictions are calibrated already; the model's own logits are needed. "
                "Predict again with calibrated=False."
            )
        if held_out.label_names != self.label_names:
            raise EbmcalError(
                f"The held-out predictions are of the classes {', '.join(held_out.label_names)}, and the model has "
                f"{', '.join(self.label_names)}. Give predictions of this model."
            )
        require_same_fold(held_out, self.folded_temperature, self.folder)

    def save(self, folder: str | Path, *, fold: bool = False) -> Path:
        """Write the model with its calibrator into a folder, in place of a model that is there; `load` reads it.

        `fold` divides the last layer by the temperature instead: plain transformers is then calibrated as well (not of
        `sngp`, whose last layer it cannot read). A rule whose promise is not for what is saved stays behind, with a
        warning.
        """
        folder = Path(folder).expanduser()
        if fold and self.calibrator is None:
            raise EbmcalError("There is no temperature to fold into the weights. Call calibrate(held_out) first.")
        if folder.exists() and not (folder / "config.json").is_file() and (folder.is_file() or any(folder.iterdir())):
            raise EbmcalError(f"{folder} is there already and is not a model folder. Choose another one.")
        if not (folder.exists() and folder.samefile(self.folder)):
            with writing_folder(folder) as aside:
                for path in self._files():
                    shutil.copy(path, aside / path.name)
            for name in CARD_FILES:  # not sealed: it may be edited
                if (self.folder / name).is_file():
                    shutil.copy(self.folder / name, folder / name)
        rule = self._rule_to_keep(fold)
        if self.calibrator is not None:
            (attach_folded if fold else attach)(folder, self.calibrator)
        (folder / RULE_FILE).unlink(missing_ok=True)
        if rule is not None:
            attach_rule(folder, rule)
        return folder

    def _rule_to_keep(self, fold: bool) -> Rule | None:
        try:
            rule = self.rule
            if (rule is None and attached_rule(self.folder) is None) or (rule is not None and not fold):
                return rule
            reason = "its promise is for other logits than those that are saved"
        except EbmcalError as error:  # of another model, or version
            reason = str(error).rstrip(".")
        warnings.warn(f"The rule to decide by is not saved: {reason}. Fit one for this model: decide", stacklevel=3)
        return None

    def _files(self) -> list[Path]:
        files = [path for path in sorted(self.folder.iterdir()) if path.suffix in KEPT and path.is_file()]
        return [path for path in files if path.name not in (SEAL, FILE_NAME, RULE_FILE)]

    def _unfolded(self, predictions: Predictions) -> Predictions:
        """The same rows with the energies of the model as it was trained; says which temperature is in the logits."""
        temperature = self.folded_temperature
        if temperature is None:
            return predictions
        kind, energies = self.classifier.energy, predictions.energies
        if kind in ENERGIES:  # functions of the logits before the temperature
            energies = ENERGIES[kind](torch.from_numpy(logits_in(predictions) * temperature)).numpy()
        elif isinstance(head := self.classifier.energy_head, EnergyScale | GaussianProcess):
            logits = torch.from_numpy(logits_in(predictions) * temperature)
            energies = head.cpu().energies(logits).detach().numpy()
        return replace(predictions, energies=energies, meta=predictions.meta | {"folded_temperature": temperature})


def _mark(rule: Rule | None) -> dict[str, str]:
    """What says which rule distances were measured by."""
    training = rule.unusual.training if rule is not None and rule.unusual is not None else None
    return {} if training is None else {"distances": training.mark}


def _texts_of(predictions: Predictions, what: str) -> list[Row]:
    if predictions.texts is None:
        raise EbmcalError(f"Distances are measured from texts, and the {what} have none (column text). Predict again.")
    pairs: Sequence[str | None] = predictions.text_pairs or [None] * predictions.n_rows
    return list(zip(predictions.texts, pairs, strict=True))


def _require_same_kind(held_out: Sequence[Row], training: Sequence[Row]) -> None:
    kinds = ["single texts" if rows[0][1] is None else "pairs" for rows in (held_out, training)]
    if kinds[0] != kinds[1]:
        raise EbmcalError(f"The held-out rows are {kinds[0]} and the training rows {kinds[1]}. Give one kind.")


def _require_apart(held_out: Sequence[Row], training: Sequence[Row]) -> None:
    """Refuse held-out texts that are training texts: they are near themselves, and new texts would all look far."""
    known = set(training)
    n_same = sum(row in known for row in held_out)
    if n_same > SAME_TEXTS * len(held_out):
        raise EbmcalError(
            f"{n_same:,} of the {len(held_out):,} held-out texts are among the training texts, where distances are 0, "
            "so new texts would look unusual by mistake. Give held-out rows that the model was not trained on."
        )
    if n_same:
        warnings.warn(
            f"{n_same:,} of the {len(held_out):,} held-out texts are among the training texts: somewhat more usual "
            "texts than promised may be called unusual.",
            stacklevel=3,
        )
