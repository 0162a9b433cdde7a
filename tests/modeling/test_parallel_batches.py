"""Batches side by side: the same numbers as one after the other; errors reach the caller; threads are restored."""

import pytest
import torch
import torch.nn.functional as F

from ebmcal.modeling.packing import divide, micro_batches
from ebmcal.modeling.threads import SeededDropout, parallel_map


@pytest.fixture(autouse=True)
def two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_threads_share_the_cores_which_are_restored():
    with parallel_map(5) as run:
        assert list(run(lambda _: torch.get_num_threads(), range(5))) == [1] * 5
    assert torch.get_num_threads() == 2


def test_an_error_in_a_thread_reaches_the_caller_and_restores_the_cores():
    def divide_by(i):
        return 1 / i

    with pytest.raises(ZeroDivisionError), parallel_map(3) as run:
        list(run(divide_by, range(3)))
    assert torch.get_num_threads() == 2


def test_seeded_dropout_repeats_itself_and_has_the_rate_and_mean_of_dropout():
    x = torch.ones(100, 1000, requires_grad=True)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)  # the shared generator has no influence
        torch.rand(len(drawn))
        with SeededDropout(seed):
            drawn.append(F.dropout(x, 0.1))
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])
    assert (drawn[0] == 0).float().mean().item() == pytest.approx(0.1, abs=0.005)
    assert drawn[0].mean().item() == pytest.approx(1, abs=0.005)
    kept = (drawn[0] != 0).float().reshape(-1, 4)  # four values share a random number
    assert (torch.corrcoef(kept.T) - torch.eye(4)).abs().max().item() < 0.03
    drawn[0].sum().backward()
    assert x.grad.equal(drawn[0].detach())
    with SeededDropout(1):
        assert F.dropout(x, 0.1, training=False) is x


def test_seeded_attention_is_torchs_apart_from_what_is_dropped():
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind(0)  # [n, H, L, D]
    bias = torch.randn(1, 4, 5, 5)
    with SeededDropout(0):
        found = F.scaled_dot_product_attention(q, k, v, bias, dropout_p=1e-12, scale=0.3)
        dropped = F.scaled_dot_product_attention(q, k, v, bias, dropout_p=0.5, scale=0.3)
        plain = F.scaled_dot_product_attention(q, k, v, bias, scale=0.3)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, bias, scale=0.3))
    torch.testing.assert_close(found, plain)
    assert not torch.allclose(found, dropped, atol=0.1)


def test_texts_are_divided_into_two_batches_of_as_many_tokens():
    lengths = torch.randint(5, 60, (32,), generator=torch.Generator().manual_seed(0)).numpy()
    first, second = divide(lengths, budget=5000)
    assert sorted([*first, *second]) == list(range(32))
    assert abs(lengths[first].sum() - lengths[second].sum()) < 60
    assert [p.tolist() for p in divide(lengths, 300)] == [p.tolist() for p in micro_batches(lengths, 300)]
    assert [p.tolist() for p in divide(lengths[:1] * 100, 10_000)] == [[0]]
