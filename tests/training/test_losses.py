"""The terms of the loss against the paper's formulas in float64, gradients and limits included."""

import math

import numpy as np
import pytest
import torch

from ebmcal.training import losses

ENERGIES = np.linspace(-20, 20, 81)
RATIOS = [1, 2, 4, 8, 100]


def data_term(energy, k):
    """-log 1 / (1 + K exp E), as the paper writes it."""
    return -math.log(1 / (1 + k * math.exp(energy)))


def noise_term(energy, k):
    """-log K / (K + exp(-E)), as the paper writes it."""
    return -math.log(k / (k + math.exp(-energy)))


def data_gradient(energy, k):
    return k * math.exp(energy) / (1 + k * math.exp(energy))


def noise_gradient(energy, k):
    return -math.exp(-energy) / (k + math.exp(-energy))


CASES = [
    (losses.nce_data_term, data_term, data_gradient),
    (losses.nce_noise_term, noise_term, noise_gradient),
]


@pytest.mark.parametrize("k", RATIOS)
@pytest.mark.parametrize(("ours", "value", "gradient"), CASES)
def test_terms_are_the_formulas(ours, value, gradient, k):
    energies = torch.from_numpy(ENERGIES).requires_grad_()
    result = ours(energies, k)
    result.sum().backward()
    # torch's softplus is the identity above 20 (2e-9 off); the formulas lose digits where 1 + exp(-20) is rounded.
    np.testing.assert_allclose(result.detach(), [value(e, k) for e in ENERGIES], rtol=3e-9, atol=1e-14)
    np.testing.assert_allclose(energies.grad, [gradient(e, k) for e in ENERGIES], rtol=3e-9, atol=1e-14)


@pytest.mark.parametrize("k", RATIOS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_energies_have_the_right_limits(k, dtype):
    energies = torch.tensor([1e4, -1e4], dtype=dtype, requires_grad=True)
    data = losses.nce_data_term(energies, k)
    np.testing.assert_allclose(data.detach(), [1e4 + math.log(k), 0.0], rtol=1e-6)
    (gradient,) = torch.autograd.grad(data.sum(), energies)
    assert gradient.tolist() == [1.0, 0.0]
    noise = losses.nce_noise_term(energies, k)
    np.testing.assert_allclose(noise.detach(), [0.0, 1e4 - math.log(k)], rtol=1e-6)
    (gradient,) = torch.autograd.grad(noise.sum(), energies)
    assert gradient.tolist() == [0.0, -1.0]


def test_more_noise_texts_raise_the_price_of_data():
    energy = torch.zeros(1)
    assert losses.nce_data_term(energy, 8) > losses.nce_data_term(energy, 1)
    assert losses.nce_noise_term(energy, 8) < losses.nce_noise_term(energy, 1)


def test_the_minimum_is_at_the_density_ratio():
    """A text three times as likely as data as it is as noise: the best energy is -log 3, whatever K is."""
    energy = torch.tensor(-math.log(0.6 / 0.2), dtype=torch.float64, requires_grad=True)
    for k in RATIOS:
        loss = 0.6 * losses.nce_data_term(energy, k) + k * 0.2 * losses.nce_noise_term(energy, k)
        (slope,) = torch.autograd.grad(loss, energy, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, energy)
        assert slope.item() == pytest.approx(0, abs=1e-14)
        assert curvature.item() > 0


def test_cross_entropy_of_each_text():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    expected = [-math.log(math.exp(2) / (math.exp(2) + 1)), math.log(2)]
    np.testing.assert_allclose(losses.cross_entropy(logits, torch.tensor([0, 1])), expected, rtol=1e-12)


def test_posterior_mse_by_hand():
    probs = torch.tensor([[0.9, 0.1], [0.5, 0.5]], dtype=torch.float64)
    frequencies = torch.tensor([[0.6, 0.3], [0.5, 0.5]], dtype=torch.float64)
    np.testing.assert_allclose(losses.posterior_mse(probs, frequencies), [0.3**2 + 0.2**2, 0.0], atol=1e-15)


def test_posterior_kl_by_hand():
    """Frequencies of bins need not sum to one: they are normalised first."""
    probs = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    frequencies = torch.tensor([[0.6, 0.2]], dtype=torch.float64)
    expected = 0.75 * math.log(0.75 / 0.9) + 0.25 * math.log(0.25 / 0.1)
    assert losses.posterior_kl(probs, frequencies).item() == pytest.approx(expected, rel=1e-12)


def test_posterior_kl_is_finite_at_zero_and_one():
    probs = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = losses.posterior_kl(probs, torch.tensor([[0.0, 1.0]]))
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(probs.grad).all()
    assert losses.posterior_kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])).item() == pytest.approx(
        0, abs=1e-5
    )


def test_separation_is_the_auroc():
    roc_auc_score = pytest.importorskip("sklearn.metrics").roc_auc_score
    rng = np.random.default_rng(0)
    data, noise = rng.integers(-4, 4, size=50), rng.integers(-3, 5, size=80)  # integers, so that there are ties
    expected = roc_auc_score([0] * 50 + [1] * 80, [*data, *noise])
    ours = losses.separation(torch.from_numpy(data), torch.from_numpy(noise)).item()
    assert ours == pytest.approx(expected, abs=1e-12)
