"""`Model`: a trained classifier ready for texts. `load` it, `predict`, `calibrate` it, let it abstain, `save` it.

The calibrator in the model directory is applied on load. A temperature that was folded into the weights is removed from
the energies again, so that they stay comparable. `Ensemble` averages several models, or passes with dropout.
"""

import functools
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from ebmcal.calibration import Calibrator, make_calibrator, read_calibrator, save_calibrator
from ebmcal.calibration.leakage import check_held_out
from ebmcal.data import as_dataset
from ebmcal.data.files import is_empty
from ebmcal.errors import EbmcalError, plural
from ebmcal.methods import register_energy
from ebmcal.modeling.classifier import EnergyClassifier, Outputs, Predictor, Text
from ebmcal.modeling.energies import ENERGIES
from ebmcal.modeling.packing import max_positions
from ebmcal.modeling.pretrained import check_directory, check_hub, default_device, quiet
from ebmcal.predictions import Predictions
from ebmcal.progress import make_reporter
from ebmcal.run_dir import read_card, recommended_model, weights_fingerprint
from ebmcal.selective import AbstentionRule, fit_abstention, read_rule, save_rule
from ebmcal.storage import PathLike, atomic_write, read_json

#: Files of a model directory; others, such as weights in unsupported formats, are not copied.
MODEL_FILES = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".vocab", ".jinja", ".npz", ".md", ".png", ".py")

#: Tokens per text, unless the card or the tokenizer says less.
MAX_LENGTH = 512

_SURROGATES = re.compile("[\\ud800-\\udfff]")  # UTF-8 cannot encode them


def load(name: PathLike, *, device: str | None = None, precision: str = "fp32") -> "Model":
    """The classifier in a directory (a model, or a run and then its recommended model) or with a hub name.

    `precision="bf16"` predicts in bfloat16, which may be faster and changes probabilities slightly; calibrators and
    abstention rules are fitted on float32 predictions. "auto" uses it if this machine is faster with it.

    model = ebmcal.load("runs/mine")
    model.predict(["a text", "another"]).probs
    """
    folder = find_model(name)
    check_directory(f"The model directory {folder}", folder)
    _check_classifier(folder)
    card = read_card(folder)
    register_energy(str(card.get("energy", "hidden")))
    classifier = EnergyClassifier.from_pretrained(folder).to(device or default_device()).eval()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        limits = (tokenizer.model_max_length, max_positions(classifier.config) or MAX_LENGTH, MAX_LENGTH)
        predictor = Predictor(classifier, tokenizer, max(1, card.get("max_length") or min(limits)), precision)
        _ = predictor.label_names
    except Exception as error:  # of the tokenizer's files or the labels in config.json
        raise EbmcalError(f"{folder} is not a usable model: {' '.join(repr(error).split())[:300]}") from error
    return Model(folder, predictor, card, read_calibrator(folder))


@dataclass(frozen=True, eq=False)
class Model:
    """A classifier with its tokenizer, energy and calibrator; made by `load`.

    Wherever it takes texts, it takes a list of texts or (text, text) pairs, the path of a file (CSV, TSV, JSONL, JSON,
    Parquet), a data frame or a `datasets.Dataset`.

        model = ebmcal.load("model")
        p = model.predict([("a premise", "a hypothesis")])
        p.probs, p.energies  # [n, C], [n]
    """

    folder: Path
    predictor: Predictor
    card: dict[str, Any]
    calibrator: Calibrator | None = None
    fitted_rule: AbstentionRule | None = None  # by `fit_abstention`, replaces the one in the directory
    owner: Any = None  # of a temporary directory, which lives as long as this model

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes, in the order of the columns of `probs`."""
        return self.predictor.label_names

    @property
    def max_length(self) -> int:
        """Tokens per text; longer texts are truncated."""
        return self.predictor.max_length

    @property
    def energy_name(self) -> str:
        """hidden, sharp-hidden, scalar or the energy of a control."""
        return self.predictor.classifier.energy

    @property
    def is_pair(self) -> bool | None:
        """Whether the model was trained on pairs of texts; None if unknown."""
        value = self.card.get("is_pair")
        return None if value is None else bool(value)

    @property
    def folded_temperature(self) -> float | None:
        """The temperature that was folded into the last layer."""
        value = self.card.get("folded_temperature")
        return None if value is None else float(value)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The identity of the weights; predictions carry it."""
        return weights_fingerprint(self.folder)

    @functools.cached_property
    def abstention_rule(self) -> AbstentionRule | None:
        """The abstention rule: fitted here, or stored in the directory for this model and calibrator."""
        return self.fitted_rule or read_rule(self.folder, calibrator=self.calibrator)

    @property
    def label_column(self) -> str:
        """The column of the labels in the training data; the default for held-out rows."""
        return str(self.card.get("label_column") or "label")

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
        id_column: str | None = None,
        calibrated: bool = True,
        progress: bool | None = False,
        dropout_seed: int | None = None,
    ) -> Predictions:
        """Probabilities, predicted labels and energies of texts.

        The columns of a file or table default to those the model was trained on. `calibrated=False` returns the
        model's own probabilities; `dropout_seed` keeps dropout on (one pass of Monte-Carlo dropout).
        """
        labels, ids = None, None
        if _is_plain_list(texts) and not self.is_pair:
            pairs: list[Text] = texts
        else:
            pairs, labels, ids = self.read_rows(
                texts, text_column=text_column, text_pair_column=text_pair_column, label_column=label_column,
                id_column=id_column,
            )  # fmt: skip
            if n_empty := sum(map(is_empty, pairs)):
                whose = "its prediction means" if n_empty == 1 else "their predictions mean"
                warnings.warn(f"{plural(n_empty, 'empty text')}: {whose} nothing.", stacklevel=2)
        rule = self.abstention_rule if dropout_seed is None else None
        features = rule is not None and rule.needs_features
        with make_reporter(progress).stage(f"Predicting with {self.folder.name}", len(pairs)) as advance:
            outputs = self.predictor(pairs, features=features, dropout_seed=dropout_seed, on_batch=advance)
        return self.finish(outputs, pairs, labels=labels, ids=ids, calibrated=calibrated)

    def finish(
        self,
        outputs: Outputs,
        texts: Sequence[Text] | None = None,
        *,
        labels: np.ndarray | None = None,
        ids: Sequence[Any] | None = None,
        calibrated: bool = True,
        meta: dict[str, Any] | None = None,
    ) -> Predictions:
        """Raw outputs as `Predictions`: folding undone in the energies, distances added, calibrator applied."""
        n = len(outputs.logits)
        about: dict[str, Any] = {"model": str(self.folder), "weights": self.fingerprint, "energy": self.energy_name}
        if self.folded_temperature is not None:
            about["folded_temperature"] = self.folded_temperature
        is_pair = bool(texts) and not isinstance(texts[0], str)  # type: ignore[index]
        predictions = Predictions(
            labels=np.full(n, -1) if labels is None else np.asarray(labels, dtype=np.int64),
            label_names=self.label_names,
            logits=outputs.logits,
            energies=self._energies(outputs),
            ids=None if ids is None else [str(i) for i in ids],
            texts=None if texts is None else [t[0] if is_pair else t for t in texts],  # type: ignore[misc]
            text_pairs=[t[1] for t in texts] if is_pair and texts is not None else None,
            meta=about | (meta or {}),
        )
        rule = self.abstention_rule if outputs.features is not None else None
        if rule is not None:
            predictions = rule.add_distances(predictions, outputs.features)
        return self.calibrator.apply(predictions) if calibrated and self.calibrator else predictions

    def predict_proba(self, texts: Any, **options: Any) -> np.ndarray:
        """P(y|x) [n, C] of texts; options as in `predict`."""
        return self.predict(texts, **options).probs

    def energy(self, texts: Any, **options: Any) -> np.ndarray:
        """Energies [n] of texts: low = like the training data; options as in `predict`."""
        return self.predict(texts, calibrated=False, **options).require_energies()

    def features(self, texts: Sequence[Text]) -> np.ndarray:
        """Mean hidden states of the middle layer [n, H]: what OOD distances are measured in."""
        return np.asarray(self.predictor(texts, features=True).features)

    def calibrate(self, held_out: Any, calibrator: str | Calibrator = "temperature", **columns: Any) -> "Model":
        """A copy with a calibrator fitted on labelled rows that the model was not trained on.

        `held_out` is this model's own uncalibrated `Predictions`, or anything `predict` takes, with labels (column
        `label_column` or that of the training data). Training rows are refused.
        """
        rows = check_held_out(self._held_out(held_out, columns), self.folder)
        unfitted = make_calibrator(calibrator) if isinstance(calibrator, str) else calibrator
        return replace(self, calibrator=unfitted.fit_predictions(rows), fitted_rule=None)

    def fit_abstention(self, held_out: Any, *, training: Any = None, **guarantees: Any) -> "Model":
        """A copy with an abstention rule fitted on labelled rows that neither the model nor its calibrator has seen.

        `guarantees` are those of `ebmcal.fit_abstention`: max_error, confidence, coverage, ood, ood_score …; distances
        (knn, mahalanobis) are measured from the `training` texts.

            model.fit_abstention(held_out, max_error=0.05).abstention_rule
        """
        names = {k: guarantees.pop(k) for k in list(guarantees) if k.endswith("_column")}
        rows = self._held_out(held_out, names)
        rule = fit_abstention(rows, model=self, training=training, **guarantees)
        return replace(self, fitted_rule=rule)

    def save(self, folder: PathLike, *, fold: bool = False) -> Path:
        """Write the model with its calibrator and abstention rule to a directory; `load` reads it.

        `fold` divides the last layer by the temperature instead, so that plain transformers is calibrated as well.
        """
        folder = Path(folder).expanduser()
        if fold and self.calibrator is None:
            raise EbmcalError("There is no temperature to fold into the weights. Call calibrate(held_out) first.")
        if folder.exists() and not (folder / "config.json").is_file() and (folder.is_file() or any(folder.iterdir())):
            raise EbmcalError(f"{folder} exists and is not a model directory. Use another one.")
        if not (folder.exists() and folder.samefile(self.folder)):
            with atomic_write(folder, directory=True) as temporary:
                for path in sorted(self.folder.iterdir()):
                    if path.suffix in MODEL_FILES and path.is_file():
                        shutil.copy(path, temporary / path.name)
        if self.calibrator is not None:
            save_calibrator(folder, self.calibrator, fold=fold)
        save_rule(folder, None if fold else self.abstention_rule)
        return folder

    def read_rows(
        self, data: Any, *, text_column: str | None = None, text_pair_column: str | None = None, **others: Any
    ) -> tuple[list[Text], np.ndarray, Sequence[str]]:
        """Texts, labels (-1: unknown) and ids of anything that `predict` takes; `others` are of `as_dataset`."""
        columns: dict[str, Any] = {"text_column": text_column, "text_pair_column": text_pair_column}
        is_table = isinstance(data, str | os.PathLike) or hasattr(data, "columns") or hasattr(data, "column_names")
        if is_table and not any(columns.values()):
            columns = {name: self.card.get(name) for name in columns}
        rows = as_dataset(data, label_names=self.label_names, **columns, **others)
        is_pair = "text_pair" in rows.column_names
        if self.is_pair is not None and self.is_pair != is_pair:
            wanted, got = ("pairs of texts", "single texts") if self.is_pair else ("single texts", "pairs")
            raise EbmcalError(f"The model {self.folder} was trained on {wanted}, got {got}.")
        texts = list(zip(rows["text"], rows["text_pair"], strict=True)) if is_pair else list(rows["text"])
        return texts, np.asarray(rows["label"]), rows["id"]

    def _held_out(self, held_out: Any, columns: dict[str, Any]) -> Predictions:
        if not isinstance(held_out, Predictions):
            held_out = self.predict(held_out, calibrated=False, **{"label_column": self.label_column} | columns)
        if held_out.meta.get("calibrator"):
            raise EbmcalError("The held-out predictions are already calibrated. Predict with calibrated=False.")
        if held_out.label_names != self.label_names:
            expected, got = ", ".join(self.label_names), ", ".join(held_out.label_names)
            raise EbmcalError(f"Expected predictions for the classes {expected}, got {got}.")
        return held_out

    def _energies(self, outputs: Outputs) -> np.ndarray:
        """Energies of the model as it was trained: a folded temperature divides the logits they are computed from."""
        classifier, temperature = self.predictor.classifier, self.folded_temperature
        if temperature is None or classifier.energy not in ENERGIES:
            return outputs.energies
        logits = torch.from_numpy(outputs.logits * np.float32(temperature))
        return ENERGIES[classifier.energy](logits, classifier.centered).numpy()


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Several models with the same labels, averaged (deep ensembles, Lakshminarayanan et al. 2017).

    With `mc_dropout`, that many passes with dropout for each model (Gal & Ghahramani 2016). The calibrator of each
    member is applied before averaging. Abstention rules of members do not hold for the average: fit one on
    predictions of the ensemble.

        ebmcal.Ensemble([ebmcal.load("seed1"), ebmcal.load("seed2")]).predict(["a text"]).probs
    """

    members: Sequence[Model]
    mc_dropout: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise EbmcalError("An ensemble needs at least one model, got none.")
        if self.mc_dropout < 0 or (self.mc_dropout == 1 and len(self.members) == 1):
            raise EbmcalError(f"mc_dropout (--mc-dropout): expected 2 passes or more, got {self.mc_dropout}.")
        places = [member.folder.resolve() for member in self.members]
        if len(set(places)) < len(places):
            raise EbmcalError(f"A model was given twice, which counts once: {', '.join(map(str, places))}")
        for member in self.members:
            if sorted(member.label_names) != sorted(self.label_names):
                wanted, got = ", ".join(self.label_names), ", ".join(member.label_names)
                raise EbmcalError(f"The labels differ: {wanted} in {places[0]}, {got} in {member.folder}.")

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes of the first member."""
        return self.members[0].label_names

    def predict(self, texts: Any, **options: Any) -> Predictions:
        """Averaged probabilities and energies; arguments as in `Model.predict`."""
        return self.average(self.predict_members(texts, **options))

    def predict_members(self, texts: Any, **options: Any) -> list[Predictions]:
        """The predictions of every member and dropout pass, with the classes in the same order."""
        texts = list(texts) if hasattr(texts, "__next__") else texts  # an iterator can be read only once
        found = (member.predict(texts, **options, dropout_seed=seed) for member, seed in self.passes())
        return [predictions.reorder(self.label_names) for predictions in found]

    def passes(self) -> list[tuple[Model, int | None]]:
        """Every member with the dropout seeds of its passes; None: without dropout."""
        seeds: Sequence[int | None] = range(self.mc_dropout) if self.mc_dropout else [None]
        return [(member, seed) for member in self.members for seed in seeds]

    def average(self, members: Sequence[Predictions]) -> Predictions:
        """The mean of the probabilities and of the energies."""
        meta = {"ensemble": [str(member.folder) for member in self.members], "mc_dropout": self.mc_dropout}
        energies = np.mean([p.require_energies() for p in members], axis=0)
        probs = np.mean([p.probs for p in members], axis=0)
        return members[0].replace(probs=probs, energies=energies, distances=None, meta=meta)


def disagreement(members: Sequence[Predictions]) -> np.ndarray:
    """How much members disagree [n], in nats: the entropy of the mean minus the mean entropy (mutual information)."""
    mean = members[0].with_probs(np.mean([p.probs for p in members], axis=0))
    return np.maximum(mean.entropy - np.mean([p.entropy for p in members], axis=0), 0.0)


def find_model(name: PathLike) -> Path:
    """The model directory: given, the recommended one of a run, or downloaded from the hub."""
    folder = Path(name).expanduser()
    if (folder / "config.yaml").is_file():
        return recommended_model(folder)
    if folder.is_dir():
        return folder
    hint = "The models of a run are in RUN/trials/METHOD-seedN/model."
    if isinstance(name, Path) or str(name).startswith((".", "/", "~")) or str(name).count("/") > 1 or folder.exists():
        raise EbmcalError(f"{folder} is not a model directory. {hint}")
    from huggingface_hub import snapshot_download

    try:
        check_hub(str(name))
        with quiet():
            return Path(snapshot_download(str(name), allow_patterns=[f"*{suffix}" for suffix in MODEL_FILES]))
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"{name!r} is not a local directory and could not be loaded from the hub: {reason} {hint}"
        ) from error


def _check_classifier(folder: Path) -> None:
    """Reject what would load with a random head, or whose outputs are not class probabilities."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise EbmcalError(f"{folder}/config.json holds a {type(config).__name__}; expected a JSON object.")
    kinds = np.ravel(config.get("architectures") or []).astype(str)
    if len(kinds) and not any("SequenceClassification" in kind for kind in kinds):
        finetune = f"Finetune it first: ebmcal run --encoder {folder} …"
        raise EbmcalError(f"{folder} is a {kinds[0]} without a classification head. {finetune}")
    if config.get("problem_type") in ("regression", "multi_label_classification"):
        raise EbmcalError(f"{folder} is a {config['problem_type']} model; ebmcal needs a single-label classifier.")


def _is_plain_list(texts: Any) -> bool:
    """Whether these are texts that need no cleaning: a non-empty list of non-empty strings without surrogates."""
    if not isinstance(texts, list) or not texts:
        return False
    return all(isinstance(text, str) and text.strip() and not _SURROGATES.search(text) for text in texts)
