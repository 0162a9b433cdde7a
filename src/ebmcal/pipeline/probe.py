"""The frozen probe: logistic regression on the mean hidden states of the encoder before finetuning.

It costs seconds and shows whether finetuning was worth it, so every run reports it as one of its rows. It has
predictions, but no model directory.
"""

from typing import Any

import numpy as np

from ebmcal.modeling.classifier import MAX_BATCH_TOKENS, EnergyClassifier, Text, tokenize
from ebmcal.modeling.packing import mean_states, micro_batches, pack, packed_layers, padded_inputs, token_budget
from ebmcal.modeling.pretrained import default_device, load_encoder
from ebmcal.pipeline.cross_fit import SPLIT, plan_folds, uses_cross_fitting
from ebmcal.pipeline.trials import SplitRows, dataset_texts, make_predictions, split_rows, train_sample
from ebmcal.pipeline.workspace import Workspace
from ebmcal.run_dir import Trial

#: The trial that holds its predictions.
FROZEN = Trial("frozen-probe", 0)

#: Training rows that the probe is fitted on, at most.
MAX_ROWS = 20_000

#: Inverse regularisation strengths to choose from, by cross-validated NLL.
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)


def ensure_probed(work: Workspace) -> None:
    """Write the predictions of the frozen probe unless they exist."""
    wanted = [split for split in work.data.splits if split != "train"]
    wanted += [f"ood_{name}" for name in work.ood] + ([SPLIT] if uses_cross_fitting(work) else [])
    missing = [split for split in wanted if not work.directory.predictions(FROZEN, split).is_file()]
    if not missing:
        return
    encoder = load_encoder(work.config.encoder, work.data.label_names, work.config.trust_remote_code)
    classifier = EnergyClassifier(encoder).to(default_device()).eval()
    train = work.data.splits["train"]
    chosen = np.asarray(train_sample(len(train), MAX_ROWS))
    texts, labels = dataset_texts(train), np.asarray(train["label"][:], dtype=np.int64)
    with work.reporter.stage("frozen probe", len(missing)) as advance:
        features = frozen_features(work, classifier, [texts[i] for i in chosen])
        probe = fit_probe(features, labels[chosen])
        for split in missing:
            if split == SPLIT:
                folds, n_held_out = plan_folds(work)
                held_out = chosen[folds[chosen] < n_held_out]
                logits = _out_of_fold(features, labels[chosen], folds[chosen], n_held_out, probe)
                ids = list(train["id"])
                rows = SplitRows([texts[i] for i in held_out], labels[held_out], [ids[i] for i in held_out], {})
            else:
                rows = split_rows(work, split)
                logits = log_probs(probe, frozen_features(work, classifier, rows.texts), len(work.data.label_names))
            make_predictions(work, FROZEN, split, rows, logits, None).write(work.directory.predictions(FROZEN, split))
            advance()


def frozen_features(work: Workspace, classifier: EnergyClassifier, texts: list[Text]) -> np.ndarray:
    """Mean last hidden states [n, H] of texts."""
    import torch

    tokens = tokenize(texts, work.tokenizer, work.config.max_length)
    lengths = np.array([len(text.ids) for text in tokens])
    features = np.empty((len(tokens), classifier.config.hidden_size), dtype=np.float32)
    with torch.inference_mode():
        for part in micro_batches(lengths, min(MAX_BATCH_TOKENS, token_budget(classifier.config))):
            batch = pack([tokens[i] for i in part]).to(default_device())
            features[part] = mean_states(_last_states(classifier, batch), batch).cpu().numpy()
    return features


def _last_states(classifier: EnergyClassifier, batch: Any) -> Any:
    encoder = classifier.encoder
    if classifier.is_packed:
        return packed_layers(encoder, batch)[-1][0]
    inputs = padded_inputs(encoder, batch)
    is_seq2seq = encoder.config.is_encoder_decoder
    reader = encoder.get_encoder() if is_seq2seq else encoder.base_model
    return reader(**inputs).last_hidden_state[inputs["attention_mask"].bool()]


def fit_probe(features: np.ndarray, labels: np.ndarray) -> Any:
    """Logistic regression on standardised features; its strength is chosen by cross-validated NLL."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    scale = float(features.std()) or 1.0
    steps = make_pipeline(FunctionTransformer(_divide, kw_args={"scale": scale}), LogisticRegression(max_iter=1000))
    n_folds = min(3, int(np.bincount(labels)[np.unique(labels)].min()))
    if n_folds < 2:
        return steps.set_params(logisticregression__C=1.0).fit(features, labels)
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=0)
    grid = {"logisticregression__C": STRENGTHS}
    return GridSearchCV(steps, grid, scoring="neg_log_loss", cv=folds).fit(features, labels).best_estimator_


def _divide(features: np.ndarray, scale: float) -> np.ndarray:
    return features / scale


def log_probs(probe: Any, features: np.ndarray, n_classes: int) -> np.ndarray:
    """Log-probabilities [n, C]; classes that the probe has not seen get a very small probability."""
    found = np.full((len(features), n_classes), np.log(1e-12))
    found[:, probe.classes_] = np.maximum(probe.predict_log_proba(features), np.log(1e-12))
    return found


def _out_of_fold(
    features: np.ndarray, labels: np.ndarray, folds: np.ndarray, n_held_out: int, probe: Any
) -> np.ndarray:
    """Log-probabilities of the rows of the held-out folds, in row order."""
    from sklearn.base import clone

    n_classes = int(labels.max()) + 1
    logits = np.empty((len(labels), n_classes))
    for fold in range(n_held_out):
        is_held_out = folds == fold
        fitted = clone(probe).fit(features[~is_held_out], labels[~is_held_out])
        logits[is_held_out] = log_probs(fitted, features[is_held_out], n_classes)
    return logits[folds < n_held_out]
