"""The sampler against transformers' `generate`, against the LM's own distribution, and row by row."""

from collections import Counter

import numpy as np
import pytest
import torch
from noise_models import make_noise_lm
from scipy import stats

from ebmcal.noise.causal_lm import Layout
from ebmcal.noise.sampler import draw_from_top_k, sample, top_k_logits

KINDS = ["gpt2", "llama", "opt"]  # many key heads, few, and an architecture that keeps its own attention


@pytest.fixture(scope="module", params=KINDS)
def lm(request):
    return make_noise_lm(request.param)


def make_layouts(lm, n=6, seed=0):
    """Infill prompts of different lengths."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(1, 200, size=length) for length in rng.integers(3, 12, size=n)]
    return [lm.lay_out(ids, lm.draw_mask(ids, rng)) for ids in texts]


def uniforms_for(layouts, n_samples=1, length=12, seed=3):
    return [[np.random.default_rng([seed, i, k]).random(length) for k in range(n_samples)] for i in range(len(layouts))]


def allowed_logits(lm, ids):
    """Logits after `ids` of the tokens that may be written in a single text."""
    logits = lm.model(torch.tensor([ids])).logits[0, -1]
    logits[[lm.markers.mask, lm.markers.write, lm.markers.separator]] = -torch.inf
    return logits


def patched(lm, monkeypatch, change):
    """Let `change(logits [n, V], input_ids, position_ids)` edit the LM's logits; returns the batch shapes it saw."""
    inner, shapes = lm.model.forward, []

    def forward(input_ids, position_ids, **kwargs):
        out = inner(input_ids=input_ids, position_ids=position_ids, **kwargs)
        shapes.append(tuple(input_ids.shape))
        change(out.logits[:, -1], input_ids, position_ids)
        return out

    monkeypatch.setattr(lm.model, "forward", forward)
    return shapes


def end_after(lm, n):
    """A change that makes rows of at least n tokens end, and the others not."""

    def change(logits, input_ids, position_ids):
        logits[:, lm.markers.end] = torch.where(position_ids[:, -1] + 1 >= n, 1e9, -1e9)

    return change


def end_after_every(lm, n):
    """A change that makes rows end after a token with an id divisible by n."""

    def change(logits, input_ids, position_ids):
        logits[:, lm.markers.end] = torch.where(input_ids[:, -1] % n == 0, 1e9, -1e9)

    return change


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_decoding_equals_generate(kind):
    lm = make_noise_lm(kind)
    layouts = make_layouts(lm)
    groups = sample(lm, layouts, uniforms_for(layouts, length=20), top_k=1)
    never = [[i] for i in (lm.markers.mask, lm.markers.write, lm.markers.separator)]
    for layout, (one,) in zip(layouts, groups, strict=True):
        prompt = torch.tensor([layout.prompt])
        expected = lm.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, num_beams=1,
            eos_token_id=lm.markers.end, pad_token_id=lm.markers.end, bad_words_ids=never,
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        assert one.written == [t for t in expected if t != lm.markers.end]
        assert one.is_unfinished == (lm.markers.end not in expected)


def check_distribution(lm, prompt, drawn, top_k):
    """Lists of at most one token, drawn after the prompt, follow the softmax of the k largest logits."""
    with torch.no_grad():
        values, tokens = allowed_logits(lm, prompt).topk(top_k)
    expected = torch.softmax(values.double(), -1).numpy() * len(drawn)
    observed = [drawn.count([] if token == lm.markers.end else [token]) for token in tokens.tolist()]
    assert sum(observed) == len(drawn)  # nothing outside the top k
    assert expected.min() > 5
    assert stats.chisquare(observed, expected * len(drawn) / expected.sum()).pvalue > 1e-3


def test_tokens_follow_the_top_k_softmax(lm):
    """Also the second ones: after a drawn token, the cache must contain that token and no other."""
    (layout, *_), rng = make_layouts(lm), np.random.default_rng(0)
    (samples,) = sample(lm, [layout], [list(rng.random((4000, 1)))], top_k=5)
    check_distribution(lm, layout.prompt, [one.written for one in samples], top_k=5)
    (samples,) = sample(lm, [layout], [list(rng.random((3000, 2)))], top_k=3)
    ((first, _),) = Counter(one.written[0] for one in samples if one.written).most_common(1)
    check_distribution(
        lm, [*layout.prompt, first], [one.written[1:] for one in samples if one.written[:1] == [first]], top_k=3
    )


@pytest.mark.parametrize("batch_size", [1, 3, 5, 256])
def test_a_sample_does_not_depend_on_the_others(lm, batch_size):
    layouts = make_layouts(lm)
    uniforms = uniforms_for(layouts, n_samples=3)
    expected = [[s.written for s in sample(lm, [p], [u])[0]] for p, u in zip(layouts, uniforms, strict=True)]
    together = sample(lm, layouts, uniforms, batch_size=batch_size)
    assert [[s.written for s in samples] for samples in together] == expected
    assert len({tuple(s.written) for s in together[0]}) > 1  # samples of one prompt differ


def test_ended_samples_leave_the_batch(monkeypatch):
    """Prompts of 2, 4, 6 and 8 tokens that all end after 8 tokens: the longest ones end first."""
    lm = make_noise_lm("llama")
    shapes = patched(lm, monkeypatch, end_after(lm, 8))
    layouts = [Layout([5] * (n - 1) + [lm.markers.write], []) for n in (2, 4, 6, 8)]
    groups = sample(lm, layouts, uniforms_for(layouts, length=20))
    assert [len(one.written) for (one,) in groups] == [6, 4, 2, 0]
    assert all(one.is_done and not one.is_unfinished for (one,) in groups)
    # A quarter of the batch is not more than REMOVE_AT; after that, every ended row is removed at once.
    assert [n for n, _ in shapes] == [4, 4, 4, 2, 2, 1, 1]  # the prompts, then six tokens of the longest answer


def test_samples_that_replace_ended_ones_change_nothing(lm, monkeypatch):
    """Rows end after every third token; with room for eight, new ones start next to unfinished ones."""
    shapes = patched(lm, monkeypatch, end_after_every(lm, 3))
    layouts = make_layouts(lm, n=12)
    uniforms = uniforms_for(layouts, n_samples=2, length=30)
    expected = [[s.written for s in sample(lm, [p], [u])[0]] for p, u in zip(layouts, uniforms, strict=True)]
    shapes.clear()
    assert [[s.written for s in samples] for samples in sample(lm, layouts, uniforms, batch_size=8)] == expected
    prompts = [i for i, (_, length) in enumerate(shapes) if length > 1]
    assert len(prompts) > 3
    # After a prompt of one or two layouts with two samples each, the batch has more rows than those.
    replaced = [i for i in prompts[1:] if i + 1 < len(shapes) and shapes[i + 1][0] > 2 * shapes[i][0]]
    assert replaced or lm.model.config.model_type == "opt"


def test_columns_that_no_row_needs_are_freed(monkeypatch):
    """Eighty rows of at most eight tokens, eight at a time: the cache is never as long as two rows in sequence."""
    lm = make_noise_lm("llama")
    lengths = []
    patched(lm, monkeypatch, end_after(lm, 10_000))
    inner = lm.model.forward

    def measured(past_key_values, **kwargs):
        out = inner(past_key_values=past_key_values, **kwargs)
        lengths.append(past_key_values.get_seq_length())
        return out

    monkeypatch.setattr(lm.model, "forward", measured)
    rng = np.random.default_rng(0)
    layouts = [Layout([5] * 3 + [lm.markers.write], []) for _ in range(40)]
    uniforms = [[rng.random(rng.integers(3, 9)) for _ in range(2)] for _ in layouts]
    groups = sample(lm, layouts, uniforms, batch_size=8)
    assert [len(s.written) for samples in groups for s in samples] == [len(u) for us in uniforms for u in us]
    assert len(lengths) > 50
    assert max(lengths) < 4 + 2 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_samples_that_outgrow_the_lm_are_unfinished_and_change_no_other(kind, monkeypatch):
    """256 positions: there is room for the prompt of 120 tokens, but not for that of 300."""
    lm = make_noise_lm(kind)
    rng = np.random.default_rng(0)
    layouts = [lm.lay_out(ids, lm.draw_mask(ids, rng)) for ids in (np.arange(1, n) % 200 + 1 for n in (6, 120, 600))]
    patched(lm, monkeypatch, end_after(lm, 10_000))
    uniforms = [[rng.random(20)], [rng.random(400)], [rng.random(400)]]
    samples = [one for (one,) in sample(lm, layouts, uniforms)]
    assert all(one.is_unfinished for one in samples)
    assert [len(one.written) for one in samples] == [20, 256 - len(layouts[1].prompt), 0]
    ((alone,),) = sample(lm, layouts[:1], uniforms[:1])
    assert alone.written == samples[0].written


def test_markers_are_never_written_and_separators_only_in_pairs(monkeypatch):
    """An LM that prefers markers."""
    lm = make_noise_lm("llama")
    m = lm.markers

    def change(logits, input_ids, position_ids):
        logits[:, [m.mask, m.write, m.separator]] = 1e4

    patched(lm, monkeypatch, change)
    pair = np.array([11, m.separator, 12])
    layouts = [lm.lay_out(ids, np.array([True, False, False])) for ids in (np.array([11, 12, 13]), pair)]
    (single,), (double,) = sample(lm, layouts, uniforms_for(layouts))
    assert not {m.mask, m.write, m.separator} & set(single.written)
    assert set(double.written) == {m.separator}


def test_inverse_cdf_orders_by_probability_and_never_leaves_the_top_k():
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.25, 0.15]])).repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.99, 1 - 1e-12], dtype=torch.float64)
    assert draw_from_top_k(logits, uniforms, k=4).tolist() == [1, 1, 2, 2, 0, 0]
    assert draw_from_top_k(logits, uniforms, k=2).tolist() == [1, 1, 1, 2, 2, 2]  # 2/3 and 1/3
    assert draw_from_top_k(logits, uniforms, k=1).tolist() == [1] * 6
    assert draw_from_top_k(logits, uniforms, k=99).tolist() == draw_from_top_k(logits, uniforms, k=4).tolist()
    impossible = torch.tensor([[0.0, -1e9, 0.0]]).repeat(6, 1)
    assert 1 not in draw_from_top_k(impossible, uniforms, k=3).tolist()


@pytest.mark.parametrize("n", [30, 64 * 5, 5000, 5003])
def test_blockwise_top_k_equals_topk(n):
    logits = torch.randn(7, n, generator=torch.Generator().manual_seed(0))
    values, tokens = top_k_logits(logits, 5)
    expected = logits.topk(5)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)
