"""The Gaussian process of sngp: its variance, its bound, and that it is saved, loaded and left alone at prediction."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ebmcal
from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import HEAD_FILE, EnergyClassifier
from ebmcal.models.packing import last_layer, pack
from ebmcal.models.scoring import score
from ebmcal.models.sngp import BOUND, GaussianProcess
from ebmcal.models.tokens import tokenize
from ebmcal.pipeline import stages
from ebmcal.predictions import Predictions
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell
from ebmcal.sharing.push import push
from small_runs import own_rows, settings, write_csv
from tiny_models import SENTENCES, make_encoder, make_wordpiece, random_texts, save_encoder

KINDS = ["bert", "roberta", "electra", "distilbert", "mpnet", "albert"]
#: The layer in front of the last one.
DENSE = {"bert": "bert.pooler.dense", "distilbert": "pre_classifier", "albert": "albert.pooler"}


def make_sngp(kind="bert", **changes):
    encoder = make_encoder(kind, **changes)
    torch.manual_seed(7)
    return EnergyClassifier(encoder, "sngp").eval()


def seen_by(model, batch):
    """Logits as the model says them and as its last layer made them, and the random features of that layer."""
    kept, last = [], last_layer(model.encoder, "a test")
    hook = last.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    with torch.no_grad():
        logits, _ = model(batch)
    hook.remove()
    return logits, kept[0] @ last.weight.T + last.bias, kept[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_variance_is_that_of_a_gaussian_process(kind):
    """Against the form with kernels of the training texts, K: k(x, x) - k(x, X) (K + I)^-1 k(X, x)."""
    model = make_sngp(kind)
    texts, others = pack(random_texts([3, 5, 5, 9])), pack(random_texts([4, 6], seed=5))
    logits, plain, _ = seen_by(model, others)
    torch.testing.assert_close(logits, plain)  # nothing is known of the variance yet
    with torch.no_grad(), model.energy_head.learning_covariance():
        model(texts)
    for batch in (texts, others):
        logits, plain, phi = seen_by(model, batch)
        known = seen_by(model, texts)[2].double() / math.sqrt(phi.shape[1])
        phi = phi.double() / math.sqrt(phi.shape[1])
        inner = torch.linalg.solve(known @ known.T + torch.eye(len(known)), known @ phi.T)  # [4, n]
        prior = (phi * phi).sum(1)
        variance = prior - ((phi @ known.T) * inner.T).sum(1)
        expected = plain.double() / (1 + variance * math.pi / 8).sqrt()[:, None]
        torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=1e-4)
        if batch is texts:  # one observation of unit noise, its own, leaves this much at most
            assert (variance <= prior / (1 + prior) + 1e-9).all()


def test_random_features_are_those_of_a_gaussian_kernel():
    """Their inner products are exp(-|h - h'|^2 / 2) of features of length 1, as far as 512 of them say."""
    head = GaussianProcess(make_encoder("bert", hidden_size=512, num_hidden_layers=1))
    features = torch.randn(5, 512, generator=torch.Generator().manual_seed(0)).cumsum(0)
    (phi,) = head._expand(None, (features,))
    unit = torch.nn.functional.normalize(features - features.mean(1, keepdim=True), dim=1)
    kernel = torch.exp(-(torch.cdist(unit, unit) ** 2) / 2)
    assert kernel.min() < 0.75
    torch.testing.assert_close(phi @ phi.T / 512, kernel, atol=0.15, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_of_the_features_is_bounded_by_training_alone(kind):
    model, batch = make_sngp(kind, scale=20.0), pack(random_texts([3, 5]))
    weight = model.encoder.get_submodule(DENSE.get(kind, "classifier.dense")).weight
    before = weight.detach().clone()
    assert torch.linalg.svdvals(before)[0] > 2 * BOUND
    model.train()
    with torch.no_grad():  # dropout at prediction time
        model(batch)
    model.eval()(batch)
    assert torch.equal(weight, before)
    model.train()
    for _ in range(60):
        logits, _ = model(batch)
    assert torch.linalg.svdvals(weight)[0].item() == pytest.approx(BOUND, rel=0.02)
    logits.sum().backward()
    assert all(p.grad is not None for p in last_layer(model.encoder, "a test").parameters())
    assert weight.grad.abs().sum() > 0


def test_what_was_saved_is_loaded(tmp_path):
    model = make_sngp()
    table = tokenize([(s, None) for s in SENTENCES[:20]], make_wordpiece(), 64, tmp_path / "tokens")
    with model.energy_head.learning_covariance():
        score(model, table)
    model.save_pretrained(tmp_path / "model")
    loaded = EnergyClassifier.from_pretrained(tmp_path / "model")
    for ours, theirs in zip(score(model, table), score(loaded, table), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert set(load_file(tmp_path / "model" / HEAD_FILE)) == {"directions", "phases", "covariance", "left"}


def test_a_run_of_pairs(tmp_path, monkeypatch):
    """The loaded model predicts what the run did; it is not sent where transformers would read it."""
    monkeypatch.setattr(stages, "write_report", lambda root: root)
    rows = [(text, SENTENCES[i], label) for i, (text, label) in enumerate(own_rows())]
    files = write_csv(tmp_path / "pairs.csv", rows, ("text", "other", "label"))
    given = {"text_column": "text", "text_pair_column": "other", "label_column": "label", "steps": 3}
    config = settings(files, save_encoder(tmp_path / "encoder"), tmp_path, methods=["sngp"], **given)
    folder = stages.run(config, Reporter())
    model, kept = ebmcal.load(folder.model(Cell("sngp", 1))), folder.predictions(Cell("sngp", 1), "test")
    assert model.classifier.energy_head.covariance.abs().sum() > 0
    run = Predictions.read(kept)
    again = model.predict(list(zip(run.texts, run.text_pairs, strict=True)))
    np.testing.assert_allclose(again.logits, run.logits, atol=1e-5)
    np.testing.assert_allclose(run.energies, -np.logaddexp.reduce(run.logits, axis=1), atol=1e-5)
    with pytest.raises(EbmcalError, match="transformers does not know"):
        push(folder.model(Cell("sngp", 1)), "me/sngp")
