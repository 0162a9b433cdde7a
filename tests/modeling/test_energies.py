"""The energies of logits."""

import math

import pytest
import torch

from ebmcal.modeling.energies import ENERGIES, hidden, sharp_hidden


@pytest.mark.parametrize("n_classes", [2, 3, 6, 77, 150])
def test_centred_energies_are_zero_for_equal_logits_of_zero(n_classes):
    logits = torch.zeros(4, n_classes)
    for energy in ENERGIES.values():
        torch.testing.assert_close(energy(logits, True), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(hidden(logits, False), torch.full((4,), -math.log(n_classes)))


def test_the_published_forms():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert hidden(logits, False).item() == pytest.approx(-math.log(sum(math.exp(x) for x in (1, 2, 3))), rel=1e-6)
    assert sharp_hidden(logits, False).item() == -3.0


def test_centring_is_a_constant_shift_so_its_gradient_is_the_same():
    logits = torch.randn(5, 7, requires_grad=True)
    (a,) = torch.autograd.grad(hidden(logits).sum(), logits)
    (b,) = torch.autograd.grad(hidden(logits, False).sum(), logits)
    torch.testing.assert_close(a, b)


def test_large_logits_do_not_overflow():
    assert hidden(torch.tensor([[1e4, -1e4]])).isfinite().all()
