"""The terms of the losses against hand-worked and independent values."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import ebmcal
from ebmcal.errors import EbmcalError
from ebmcal.methods import METHODS, find_method, load_method
from ebmcal.methods.focal import focal_loss
from ebmcal.methods.joint import nce_data_term, nce_noise_term
from ebmcal.methods.poscal import kl_divergence, label_frequencies, look_up, squared_distance
from ebmcal.training.classifier_trainer import EnergyConfig, noise_auroc

ENERGIES = torch.linspace(-6, 6, 25, dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 8])
def test_nce_terms_are_the_fractions_of_equation_7(k):
    data = -torch.log(1 / (1 + k * ENERGIES.exp()))
    noise = -torch.log(k / (k + (-ENERGIES).exp()))
    torch.testing.assert_close(nce_data_term(ENERGIES, k), data)
    torch.testing.assert_close(nce_noise_term(ENERGIES, k), noise)


@pytest.mark.parametrize("k", [1, 3])
def test_nce_is_a_classification_of_data_against_noise(k):
    """With the logit -Ê - log K, both terms are the binary cross-entropy of being data."""
    logits = -ENERGIES - math.log(k)
    ones, zeros = torch.ones_like(logits), torch.zeros_like(logits)
    torch.testing.assert_close(
        nce_data_term(ENERGIES, k), F.binary_cross_entropy_with_logits(logits, ones, reduction="none")
    )
    torch.testing.assert_close(
        nce_noise_term(ENERGIES, k), F.binary_cross_entropy_with_logits(logits, zeros, reduction="none")
    )


def test_nce_terms_do_not_overflow():
    extreme = torch.tensor([1e4, -1e4])
    assert nce_data_term(extreme, 8).isfinite().all()
    assert nce_noise_term(extreme, 8).isfinite().all()


def test_noise_auroc_equals_scikit_learn():
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(0)
    energies = torch.randn(40, generator=generator).round(decimals=1)  # with ties
    is_noise = torch.rand(40, generator=generator) < 0.4
    assert noise_auroc(energies, is_noise).item() == pytest.approx(roc_auc_score(is_noise, energies))


def test_focal_loss_with_gamma_0_is_cross_entropy():
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(focal_loss(logits, labels, 0.0), F.cross_entropy(logits, labels, reduction="none"))


def test_poscal_frequencies_by_hand():
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    table = label_frequencies(probs, torch.tensor([0, 1, 1]), n_bins=2)
    torch.testing.assert_close(table, torch.tensor([[0.0, 0.5], [0.5, 1.0]]))
    torch.testing.assert_close(look_up(torch.tensor([[0.9, 0.1]]), table), torch.tensor([[0.5, 0.5]]))
    empty = label_frequencies(probs[:1], torch.tensor([0]), n_bins=2)  # empty bins are 0, as the authors' are
    torch.testing.assert_close(empty, torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


def test_poscal_distances_are_means_over_classes_like_the_authors():
    probs, frequencies = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]])
    assert squared_distance(probs, frequencies).item() == pytest.approx(0.0625)
    assert kl_divergence(frequencies, frequencies).item() == pytest.approx(0.0, abs=1e-6)
    assert kl_divergence(probs, frequencies).item() > 0


def test_every_method_can_be_loaded():
    args = EnergyConfig("out", use_cpu=True, report_to="none")
    for name, info in METHODS.items():
        method = load_method(name, args)
        assert method.args is args
        assert info.title


def test_label_smoothing_comes_from_the_method_or_the_training_arguments():
    args = EnergyConfig("out", use_cpu=True, report_to="none", label_smoothing=0.2, label_smoothing_factor=0.05)
    assert load_method("label-smoothing", args).smoothing == 0.2
    assert load_method("hidden-smoothing", args).smoothing == 0.2
    assert load_method("hidden", args).smoothing == 0.05


def test_an_unknown_method_gets_a_suggestion():
    with pytest.raises(EbmcalError, match="Did you mean 'hidden'"):
        find_method("hiddn")


def test_the_whole_method_is_at_most_500_lines_and_1000_with_infilling():
    """The files that docs/method.md names."""
    root = Path(ebmcal.__file__).parent
    files = ["modeling/energies.py", "methods/joint.py", "noise/sources.py", "training/collator.py"]
    files += ["training/trainer.py"]
    n_lines = [len((root / name).read_text(encoding="utf-8").splitlines()) for name in (*files, "noise/causal_lm.py")]
    assert sum(n_lines[:-1]) <= 500
    assert sum(n_lines) <= 1000
