"""Energies against float64 evaluations of their definitions, and their gradients."""

import math

import numpy as np
import pytest
import torch

from ebmcal.models.energies import ENERGIES, hidden, sharp_hidden

LOGITS = np.random.default_rng(0).normal(size=(7, 5)) * 4


def direct(name, row):
    """The definition, in Python floats."""
    return -math.log(sum(math.exp(v) for v in row)) if name == "hidden" else -max(row)


@pytest.mark.parametrize("name", ENERGIES)
def test_values_are_those_of_the_definition(name):
    ours = ENERGIES[name](torch.from_numpy(LOGITS))
    assert ours.shape == (7,)
    np.testing.assert_allclose(ours, [direct(name, row) for row in LOGITS], rtol=1e-13)


def test_gradient_of_hidden_is_minus_the_posterior():
    logits = torch.from_numpy(LOGITS).requires_grad_()
    hidden(logits).sum().backward()
    np.testing.assert_allclose(logits.grad, -torch.softmax(logits.detach(), -1), rtol=1e-12)


def test_gradient_of_sharp_hidden_is_minus_one_at_the_largest():
    logits = torch.from_numpy(LOGITS).requires_grad_()
    sharp_hidden(logits).sum().backward()
    assert torch.equal(logits.grad, -torch.nn.functional.one_hot(logits.argmax(-1), 5).double())


@pytest.mark.parametrize("name", ENERGIES)
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits_stay_finite(name, size):
    energy = ENERGIES[name](torch.tensor([[size, 0.0]]))
    assert energy.item() == -max(size, 0.0)


def test_low_energy_means_like_data():
    sure, unsure = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.1, 0.0]])
    for energy in ENERGIES.values():
        assert energy(sure) < energy(unsure)
