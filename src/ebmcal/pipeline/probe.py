"""The frozen probe: logistic regression on the mean hidden states of the encoder as it is.

It costs seconds, shows whether finetuning was worth it, and is a trial like the others: its model is the encoder with a
mean-pooling head whose weights are those of the regression, so it can be recommended, saved and served.
"""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from ebmcal.data import stratified_folds, stratified_subset
from ebmcal.modeling.classifier import EnergyClassifier, Predictor
from ebmcal.modeling.pretrained import check_encoder, default_device, load_encoder
from ebmcal.pipeline.cross_fit import SPLIT
from ebmcal.pipeline.trials import (
    dataset_texts,
    ensure_predicted,
    is_predicted,
    make_card,
    sample_indices,
    save_model,
    write_predictions,
)
from ebmcal.run_dir import FROZEN_PROBE, Trial

if TYPE_CHECKING:
    from ebmcal.pipeline import Workspace

#: It has no seeds.
PROBE = Trial(FROZEN_PROBE, 0)

#: The training rows that it is fitted on, at most, and those of them that its strength is chosen on.
MAX_ROWS, MAX_STRENGTH_ROWS = 20_000, 3000

#: The first inverse regularisation strength to try, the largest, and the fall of the loss that another one needs.
FIRST_STRENGTH, MAX_STRENGTH, MIN_GAIN = 0.1, 1e4, 0.01

#: The logit of a class without training rows.
ABSENT = -30.0


def ensure_probed(work: "Workspace", folds: np.ndarray | None) -> None:
    """Fit the probe and predict with it, unless that is done; out of fold if there are folds."""
    if check_encoder(work.config.encoder, work.config.trust_remote_code).is_encoder_decoder:
        work.reporter.info("frozen probe: left out, because mean pooling is not possible with a decoder")
        return
    has_model = (work.directory.model(PROBE) / "config.json").is_file()
    if not has_model or (folds is not None and not is_predicted(work, PROBE, SPLIT)):
        with work.reporter.stage("frozen probe"):
            _fit(work, folds)
    ensure_predicted(work, PROBE)


def _fit(work: "Workspace", folds: np.ndarray | None) -> None:
    """Write the model and, if there are folds, the out-of-fold predictions."""
    start, config, label_names = time.monotonic(), work.config, work.data.label_names
    encoder: Any = load_encoder(config.encoder, label_names, config.trust_remote_code, pooling="mean")
    classifier = EnergyClassifier(encoder).to(default_device()).eval()
    predictor = Predictor(classifier, work.tokenizer, config.max_length)
    chosen = sample_indices(len(work.data.splits["train"]), MAX_ROWS)
    train = work.data.splits["train"].select(chosen)
    labels = np.asarray(train["label"][:])
    features = np.asarray(predictor(dataset_texts(train), features="last").features)
    scale = float(features.std()) or 1.0
    probe = fit_probe(features / scale, labels)
    if folds is not None:
        logits = out_of_fold(probe.C, features / scale, labels, folds[chosen], len(label_names))
        rows = np.flatnonzero(folds[chosen] >= 0)
        write_predictions(work, PROBE, SPLIT, train.select(rows), logits[rows])
    weight, bias = linear_layer(probe, len(label_names))
    with torch.no_grad():
        encoder.classifier.weight.copy_(torch.from_numpy(weight / scale))
        encoder.classifier.bias.copy_(torch.from_numpy(bias))
    facts = {"steps": 0, "seconds": round(time.monotonic() - start, 1), "precision": "fp32"}
    card = make_card(work, PROBE, work.data.splits["train"]) | {"training": facts}
    save_model(work, classifier, work.directory.model(PROBE), card)


def fit_probe(features: np.ndarray, labels: np.ndarray) -> LogisticRegression:
    """Logistic regression; its strength is chosen by cross-validated NLL, on at most `MAX_STRENGTH_ROWS` rows."""
    keys, n_classes = np.arange(len(labels), dtype=np.uint64), int(labels.max()) + 1
    rows = stratified_subset(keys, labels, MAX_STRENGTH_ROWS, seed=0, every_class=False)
    x, y, folds = features[rows], labels[rows], stratified_folds(keys[rows], labels[rows], 3, seed=0)
    best, losses = FIRST_STRENGTH, dict[float, float]()
    while True:  # the loss has one minimum: walk to it, so that it is never at the edge of a grid
        for strength in (best / 10, best, best * 10):
            if strength not in losses:
                logits = out_of_fold(strength, x, y, folds, n_classes)
                losses[strength] = -float(logits[np.arange(len(y)), y].mean())
        better = min(losses, key=lambda strength: losses[strength])
        if losses[better] >= (1 - MIN_GAIN) * losses[best] or better > MAX_STRENGTH:
            return LogisticRegression(C=best, max_iter=1000).fit(features, labels)
        best = better


def out_of_fold(
    strength: float, features: np.ndarray, labels: np.ndarray, folds: np.ndarray, n_classes: int
) -> np.ndarray:
    """Log-probabilities [n, C] of the rows of the held-out folds; uniform for others, and if only one class is left."""
    logits = np.full((len(labels), n_classes), -np.log(n_classes))
    for fold in range(folds.max() + 1):
        rest = folds != fold
        if len(np.unique(labels[rest])) > 1:
            probe = LogisticRegression(C=strength, max_iter=1000).fit(features[rest], labels[rest])
            weight, bias = linear_layer(probe, n_classes)
            logits[~rest] = log_softmax(features[~rest] @ weight.T + bias, axis=1)
    return logits


def linear_layer(probe: LogisticRegression, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights [C, H] and bias [C] whose softmax gives the probabilities of the regression."""
    coefficients, intercepts = probe.coef_, probe.intercept_
    if len(coefficients) == 1:  # two classes: the logit of the second one
        coefficients, intercepts = np.vstack([-coefficients, coefficients]) / 2, np.r_[-intercepts, intercepts] / 2
    weight, bias = np.zeros((n_classes, coefficients.shape[1])), np.full(n_classes, ABSENT)
    weight[probe.classes_], bias[probe.classes_] = coefficients, intercepts
    return weight, bias
