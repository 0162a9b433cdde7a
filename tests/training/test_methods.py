"""The contract of every method, the joint loss as the trainer sums it, and PosCal's table."""

import math

import numpy as np
import pytest
import torch

from ebmcal.config import METHOD_NAMES
from ebmcal.errors import EbmcalError
from ebmcal.models.classifier import HEADS
from ebmcal.models.energies import ENERGIES
from ebmcal.noise.masking import MODES
from ebmcal.noise_setting import MODE_NAMES
from ebmcal.training import losses
from ebmcal.training.methods import METHODS, Rows, Settings, find_method, label_frequencies

N_DATA, RATIO = 6, 3
ON_NOISE = {"noise_term", "uniform_term", "mixed_term"}


def make_rows(seed=0, n_noise=N_DATA * RATIO, dtype=torch.float64):
    """Data and noise texts in mixed order, as length-sorted micro-batches have them."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation([0, 1, 2, 0, 1, 2] + [-1] * n_noise)
    logits = torch.tensor(rng.normal(size=(len(labels), 3)) * 2, dtype=dtype, requires_grad=True)
    energies = torch.tensor(rng.normal(size=len(labels)) * 2, dtype=dtype, requires_grad=True)
    mixed = np.where(labels[:, None] < 0, [[0, 2, 0.75]], -1.0)
    masked = torch.tensor(rng.random(len(labels)), dtype=dtype)
    near, far = (torch.tensor(rng.normal(size=logits.shape), dtype=dtype) for _ in range(2))
    partners = torch.arange(len(labels)).flip(0)
    labels, mixed = torch.from_numpy(labels), torch.from_numpy(mixed)
    return Rows(logits, energies, labels, mixed, masked, near, far, partners)


def total(rows, terms, n_data=N_DATA):
    """The loss as the trainer sums it."""
    return sum(weight * values.sum() / n_data for values, weight in terms.values())


def test_names_without_torch_are_those_of_the_tables():
    assert tuple(METHODS) == METHOD_NAMES
    assert tuple(MODES) == MODE_NAMES


@pytest.mark.parametrize("name", METHODS)
def test_contract(name):
    method = METHODS[name]
    rows = make_rows(n_noise=N_DATA * RATIO if method.uses_noise else 0)
    table = torch.full((3, 20), 0.3) if method.uses_frequencies else None
    terms = method.terms(rows, Settings(noise_ratio=RATIO, frequencies=table))
    assert {"cross_entropy", "focal"} & set(terms)
    assert method.title
    assert method.energy in [*ENERGIES, *HEADS]
    assert method.uses_noise == bool(ON_NOISE & set(terms))
    assert method.uses_frequencies == ("posterior_term" in terms)
    assert method.uses_masking == ("masked_term" in terms)
    assert method.uses_manifold == ({"near_term", "far_term"} <= set(terms))
    for term, (values, weight) in terms.items():
        n = N_DATA * RATIO if term in ON_NOISE else N_DATA
        assert values.shape == (n,), term
        assert weight > 0
        assert torch.isfinite(values).all()
    total(rows, terms).backward()
    assert torch.isfinite(rows.logits.grad).all()
    moves_noise = bool({"uniform_term", "mixed_term"} & set(terms))
    assert bool(rows.logits.grad[~rows.is_data].abs().sum() > 0) == moves_noise  # else noise has no label
    assert rows.logits.grad[rows.is_data].abs().sum() > 0
    without = method.terms_without_noise(rows, Settings())
    assert not ON_NOISE & set(without)
    assert "data_term" not in without


@pytest.mark.parametrize("name", METHODS)
def test_a_micro_batch_may_hold_noise_alone_or_data_alone(name):
    rows = make_rows()
    for keep in (rows.is_data, ~rows.is_data):
        part = Rows(rows.logits[keep], rows.energies[keep], rows.labels[keep], rows.mixed[keep], rows.masked[keep])
        terms = METHODS[name].terms(part, Settings(frequencies=torch.full((3, 20), 0.3)))
        assert torch.isfinite(total(part, terms))


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("name", ["hidden", "sharp-hidden", "scalar", "scaled-hidden"])
def test_the_sum_over_texts_is_the_papers_loss(name, k, weight):
    """CE + weight · (mean data term + K · mean noise term), values and gradients."""
    rows = make_rows(n_noise=N_DATA * k)
    ours = total(rows, METHODS[name].terms(rows, Settings(noise_ratio=k, energy_weight=weight)))
    data, noise = rows.energies[rows.is_data], rows.energies[~rows.is_data]
    cross_entropy = torch.nn.functional.cross_entropy(rows.logits[rows.is_data], rows.labels[rows.is_data])
    data_mean = -torch.log(1 / (1 + k * torch.exp(data))).mean()
    noise_mean = -torch.log(k / (k + torch.exp(-noise))).mean()
    direct = cross_entropy + weight * (data_mean + k * noise_mean)
    assert ours.item() == pytest.approx(direct.item(), rel=1e-12)
    for inputs in (rows.energies, rows.logits):
        gradients = (torch.autograd.grad(loss, inputs, retain_graph=True)[0] for loss in (ours, direct))
        np.testing.assert_allclose(*gradients, rtol=1e-10, atol=1e-14)


def test_mixup_mixes_logits_and_labels_in_the_same_shares():
    rows = make_rows(n_noise=0)
    torch.manual_seed(5)
    values, weight = METHODS["mixup"].terms(rows, Settings(mixup_alpha=0.4))["cross_entropy"]
    torch.manual_seed(5)
    order = torch.randperm(N_DATA)
    shares = torch.distributions.Beta(*torch.full((2, N_DATA), 0.4, dtype=torch.float64)).sample()
    for i, (j, share) in enumerate(zip(order, shares, strict=True)):
        logs = torch.log_softmax(share * rows.logits[i] + (1 - share) * rows.logits[j], dim=-1)
        expected = -share * logs[rows.labels[i]] - (1 - share) * logs[rows.labels[j]]
        assert values[i].item() == pytest.approx(expected.item(), rel=1e-12)
    assert weight == 1
    assert 0 < shares.min() < 0.2 < 0.8 < shares.max() < 1  # Beta(0.4, 0.4) is mostly near 0 and 1


def test_samples_near_a_text_share_its_label_and_far_ones_have_none():
    """P = (0.8, 0.2) near a text of class 0 whose partner has class 1; far away the entropy of (0.8, 0.2)."""
    logits = torch.tensor([[math.log(4), 0.0], [0.0, 0.0]], dtype=torch.float64)
    rows = Rows(logits, logits[:, 0], torch.tensor([0, 1]), near=logits, far=logits, partners=torch.tensor([1, 0]))
    terms = METHODS["manifold"].terms(rows, Settings(manifold_mix=0.25))
    near = [-0.75 * math.log(0.8) - 0.25 * math.log(0.2), math.log(2)]
    far = [0.8 * math.log(0.8) + 0.2 * math.log(0.2), -math.log(2)]
    assert terms["near_term"][0].tolist() == pytest.approx(near, rel=1e-12)
    assert terms["far_term"][0].tolist() == pytest.approx(far, rel=1e-12)
    assert [weight for _, weight in terms.values()] == [1, 1, 1]


def two_rows():
    """A data text with label 0 and P = (0.8, 0.2), E = 0; a noise text with P = (0.5, 0.5), E = log 2, mixed 3 : 1."""
    logits = torch.tensor([[math.log(4), 0.0], [0.3, 0.3]], dtype=torch.float64)
    energies = torch.tensor([0.0, math.log(2)], dtype=torch.float64)
    mixed = torch.tensor([[-1, -1, -1], [1, 0, 0.75]], dtype=torch.float64)
    return Rows(logits, energies, torch.tensor([0, -2]), mixed)


SETTINGS = Settings(noise_ratio=1, energy_weight=0.3, label_smoothing=0.2, focal_gamma=2.0, mix_weight=0.6)
PLAIN = (-math.log(0.8), 1.0)
SMOOTHED = (-0.9 * math.log(0.8) - 0.1 * math.log(0.2), 1.0)  # 0.2 spread over both: 0.9 and 0.1
NCE = {"data_term": (math.log(2), 0.3), "noise_term": (math.log(1.5), 0.3)}
MIXED = (math.log(2), 0.6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baseline", {"cross_entropy": PLAIN}),
        ("label-smoothing", {"cross_entropy": SMOOTHED}),
        ("focal", {"focal": (-(0.2**2) * math.log(0.8), 1.0)}),
        ("noise-entropy", {"cross_entropy": PLAIN, "uniform_term": (math.log(2), 0.3)}),
        ("cutmix", {"cross_entropy": PLAIN, "mixed_term": MIXED}),
        ("hidden", {"cross_entropy": PLAIN} | NCE),
        ("hidden-smoothing", {"cross_entropy": SMOOTHED} | NCE),
        ("hidden-cutmix", {"cross_entropy": PLAIN, "mixed_term": MIXED} | NCE),
        ("hidden-entropy", {"cross_entropy": PLAIN, "uniform_term": (math.log(2), 0.3)} | NCE),
    ],
)
def test_terms_by_hand(name, expected):
    terms = METHODS[name].terms(two_rows(), SETTINGS)
    assert {term: (values.item(), weight) for term, (values, weight) in terms.items()} == {
        term: (pytest.approx(value, rel=1e-12), weight) for term, (value, weight) in expected.items()
    }


def test_uniform_labels_are_furthest_from_a_sure_prediction():
    """P = (0.8, 0.2): half of -log 0.8 and half of -log 0.2; least, log 2, where both classes are as likely."""
    logits = torch.tensor([[math.log(4), 0.0], [0.0, 0.0]], dtype=torch.float64)
    expected = [-(math.log(0.8) + math.log(0.2)) / 2, math.log(2)]
    assert losses.uniform_term(logits).tolist() == pytest.approx(expected, rel=1e-12)


def test_mixed_labels_weigh_as_their_parts():
    """P = (0.8, 0.2), three quarters of a text of class 1: 0.75 · -log 0.2 + 0.25 · -log 0.8."""
    rows = two_rows()
    rows.logits[1] = rows.logits[0]
    values, _ = METHODS["cutmix"].terms(rows, SETTINGS)["mixed_term"]
    assert values.item() == pytest.approx(-0.75 * math.log(0.2) - 0.25 * math.log(0.8), rel=1e-12)
    assert "mixed_term" not in METHODS["cutmix"].terms(Rows(rows.logits, rows.energies, rows.labels), SETTINGS)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_focal_loss_weighs_what_is_learned_less(gamma):
    logits, labels = torch.tensor([[4.0, 0.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    ratio = losses.focal(logits, labels, gamma) / losses.cross_entropy(logits, labels)
    probs = torch.softmax(logits, -1)[:, 0]
    np.testing.assert_allclose(ratio, (1 - probs) ** gamma, rtol=1e-12)


def test_focal_loss_of_a_certain_prediction_has_a_gradient():
    """P(y|x) = 1 to the last digit: (1 - p)^gamma has no slope there that is not finite."""
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    losses.focal(logits, torch.tensor([0]), 0.5).sum().backward()
    assert torch.isfinite(logits.grad).all()


def slow_frequencies(probs, labels, n_bins):
    table = np.full((probs.shape[1], n_bins), np.nan)
    for y in range(probs.shape[1]):
        for b in range(n_bins):
            inside = [
                i for i, p in enumerate(probs[:, y])
                if b / n_bins <= p < (b + 1) / n_bins or (p == 1 and b == n_bins - 1)
            ]  # fmt: skip
            if inside:
                table[y, b] = sum(labels[i] == y for i in inside) / len(inside)
    return table


@pytest.mark.parametrize("n_bins", [1, 4, 16])
def test_label_frequencies_against_a_slow_loop(n_bins):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.3] * 4, size=300)
    probs[:2] = [[1, 0, 0, 0], [0, 0.5, 0.5, 0]]
    labels = rng.integers(0, 4, size=300)
    ours = label_frequencies(torch.from_numpy(probs), torch.from_numpy(labels), n_bins)
    np.testing.assert_allclose(ours, slow_frequencies(probs, labels, n_bins), rtol=1e-12)


def poscal_rows(logits, label):
    logits = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    return Rows(logits, logits[:, 0], torch.tensor([label]))


def test_poscal_has_no_term_before_its_table_is_filled():
    assert set(METHODS["poscal"].terms(poscal_rows([1.0, 0.0], 0), Settings())) == {"cross_entropy"}


def test_poscal_terms_by_hand():
    """P = (0.8, 0.2): bins 3 and 0 of four; their frequencies are 0.5 and 0.25."""
    table = torch.full((2, 4), torch.nan, dtype=torch.float64)
    table[0, 3], table[1, 0] = 0.5, 0.25
    rows = poscal_rows([math.log(4), 0.0], 0)
    settings = Settings(frequencies=table, poscal_weight=0.7)
    values, weight = METHODS["poscal"].terms(rows, settings)["posterior_term"]
    assert weight == 0.7
    assert values.item() == pytest.approx(0.3**2 + 0.05**2, rel=1e-12)
    values, _ = METHODS["poscal-kl"].terms(rows, settings)["posterior_term"]
    expected = 2 / 3 * math.log((2 / 3) / 0.8) + 1 / 3 * math.log((1 / 3) / 0.2)
    assert values.item() == pytest.approx(expected, rel=1e-12)


def test_poscal_pulls_towards_the_frequency_and_only_through_the_posterior():
    """An over-confident bin pulls the logit of its class down; the bins themselves have no gradient."""
    table = torch.tensor([[0.0, 0.0, 0.0, 0.5], [0.5, 1.0, 1.0, 1.0]], dtype=torch.float64)
    rows = poscal_rows([math.log(4), 0.0], 0)
    values, _ = METHODS["poscal"].terms(rows, Settings(frequencies=table))["posterior_term"]
    values.sum().backward()
    assert rows.logits.grad[0, 0] > 0 > rows.logits.grad[0, 1]


@pytest.mark.parametrize("name", ["poscal", "poscal-kl"])
def test_bins_without_texts_pull_nowhere(name):
    rows = poscal_rows([math.log(4), 0.0], 0)
    values, _ = METHODS[name].terms(rows, Settings(frequencies=torch.full((2, 4), torch.nan)))["posterior_term"]
    values.sum().backward()
    assert values.item() == pytest.approx(0, abs=1e-12)
    assert rows.logits.grad.abs().max() < 1e-7


def test_an_unknown_method_names_the_near_ones():
    with pytest.raises(EbmcalError, match=r"Unknown method 'sharp_hidden'. Did you mean 'sharp-hidden'"):
        find_method("sharp_hidden")
    assert find_method("baseline").terms is METHODS["baseline"].terms


def test_losses_are_summed_not_averaged_by_the_terms():
    """A term is one value a text: the trainer, not the term, divides."""
    rows = make_rows()
    values, _ = METHODS["hidden"].terms(rows, Settings(noise_ratio=RATIO))["noise_term"]
    np.testing.assert_allclose(
        values.detach(), losses.nce_noise_term(rows.energies[~rows.is_data], RATIO).detach(), rtol=1e-15
    )
