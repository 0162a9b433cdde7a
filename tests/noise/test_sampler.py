"""The sampler against transformers' own generation, against the LM's own distribution, and row by row."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from ebmcal.noise import sampler as sampling
from ebmcal.noise.masking import Piece
from ebmcal.noise.sampler import Row, draw_from_top_k, sample, top_k
from tiny_models import make_noise_lm

KINDS = ["gpt2", "llama", "opt"]  # many key heads, few, and an architecture whose attention stays its own


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


def written_logits(lm, ids):
    """Logits behind `ids` of what may be written in a text that is no pair."""
    logits = lm.model(torch.tensor([ids])).logits[0, -1]
    logits[[lm.markers.mask, lm.markers.write, lm.markers.separator]] = -torch.inf
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_what_transformers_generates(kind):
    lm = make_noise_lm(kind)
    layouts = make_layouts(lm)
    rows = sample(lm, layouts, uniforms_for(layouts, length=20), top_k=1)
    reading_only = [[i] for i in (lm.markers.mask, lm.markers.write, lm.markers.separator)]
    for pieces, (row,) in zip(layouts, rows, strict=True):
        prompt = torch.tensor([pieces[0].read])
        expected = lm.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, num_beams=1,
            eos_token_id=lm.markers.end, pad_token_id=lm.markers.end, bad_words_ids=reading_only,
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        assert row.written == [[t for t in expected if t != lm.markers.end]]
        assert row.unfinished == (lm.markers.end not in expected)


def test_tokens_come_as_often_as_their_top_k_softmax_says(lm):
    (pieces, *_) = make_layouts(lm)
    rng, n = np.random.default_rng(0), 4000
    (rows,) = sample(lm, [pieces], [list(rng.random((n, 1)))], top_k=5)
    drawn = [row.written[0][0] if row.written[0] else lm.markers.end for row in rows]
    with torch.no_grad():
        logits = written_logits(lm, pieces[0].read)
    values, tokens = logits.topk(5)
    expected = torch.softmax(values.double(), -1).numpy() * n
    observed = [drawn.count(token) for token in tokens.tolist()]
    assert sum(observed) == n  # nothing outside the top k
    assert expected.min() > 5
    assert stats.chisquare(observed, expected * n / expected.sum()).pvalue > 1e-3


def test_later_tokens_follow_the_distribution_too(lm):
    """Behind a first token that was drawn, the cache must hold that token and no other."""
    (pieces, *_) = make_layouts(lm)
    rng, n = np.random.default_rng(1), 3000
    (rows,) = sample(lm, [pieces], [list(rng.random((n, 2)))], top_k=3)
    ((first, _),) = Counter(row.written[0][0] for row in rows if row.written[0]).most_common(1)
    seconds = [row.written[0][1:] for row in rows if row.written[0][:1] == [first]]
    with torch.no_grad():
        logits = written_logits(lm, [*pieces[0].read, first])
    values, tokens = logits.topk(3)
    expected = torch.softmax(values.double(), -1).numpy() * len(seconds)
    observed = [seconds.count([] if token == lm.markers.end else [token]) for token in tokens.tolist()]
    assert sum(observed) == len(seconds)
    assert stats.chisquare(observed, expected * sum(observed) / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize("batch_rows", [1, 3, 5, 256])
def test_a_row_does_not_depend_on_its_neighbours(lm, batch_rows):
    layouts = make_layouts(lm)
    uniforms = uniforms_for(layouts, n_samples=3)
    expected = [[r.text for r in sample(lm, [p], [u])[0]] for p, u in zip(layouts, uniforms, strict=True)]
    together = sample(lm, layouts, uniforms, batch_rows=batch_rows)
    assert [[row.text for row in rows] for rows in together] == expected
    assert [row.prompt for rows in together for row in rows] == [i for i in range(6) for _ in range(3)]
    assert len({tuple(row.text) for row in together[0]}) > 1  # samples of one prompt differ


def end_at(lm, length):
    """A forward that makes rows of at least `length` tokens end, and the others not; and the batch sizes it saw."""
    inner, calls = lm.model.forward, []

    def forward(input_ids, position_ids, **kwargs):
        out = inner(input_ids=input_ids, position_ids=position_ids, **kwargs)
        calls.append(len(input_ids))
        ends = position_ids[:, -1] + 1 >= length
        out.logits[:, -1, lm.markers.end] = torch.where(ends, 1e9, -1e9)
        return out

    return forward, calls


def test_finished_rows_leave_the_batch(monkeypatch):
    """Prompts of 2, 4, 6 and 8 tokens that all end after 8 tokens: the longest ones finish first."""
    lm = make_noise_lm("llama")
    forward, calls = end_at(lm, 8)
    monkeypatch.setattr(lm.model, "forward", forward)
    layouts = [[Piece([], [5] * (n - 1) + [lm.markers.write], [])] for n in (2, 4, 6, 8)]
    rows = sample(lm, layouts, uniforms_for(layouts, length=20))
    assert [len(row.written[0]) for (row,) in rows] == [6, 4, 2, 0]
    assert all(row.done and not row.unfinished for (row,) in rows)
    # A quarter of the batch is not more than DROP_AT; after that, every finished row is dropped at once.
    assert calls == [4, 4, 4, 2, 2, 1, 1]  # the prompts once, then six tokens of the longest answer


def test_dropping_rows_changes_nothing(lm, monkeypatch):
    """Rows end behind every fifth token of the vocabulary: some early, some late, in no order."""
    inner, sizes = lm.model.forward, []

    def forward(input_ids, **kwargs):
        out = inner(input_ids=input_ids, **kwargs)
        sizes.append(len(input_ids))
        out.logits[:, -1, lm.markers.end] = torch.where(input_ids[:, -1] % 5 == 0, 1e9, -1e9)
        return out

    monkeypatch.setattr(lm.model, "forward", forward)
    layouts = make_layouts(lm)
    uniforms = uniforms_for(layouts, n_samples=4, length=30)
    dropped = [[r.text for r in rows] for rows in sample(lm, layouts, uniforms)]
    assert len(set(sizes[1:])) > 3
    monkeypatch.setattr(sampling, "DROP_AT", 1.0)
    assert [[r.text for r in rows] for rows in sample(lm, layouts, uniforms)] == dropped


def test_a_row_that_finds_no_end_is_marked(monkeypatch):
    lm = make_noise_lm("llama")
    forward, _ = end_at(lm, 10_000)
    monkeypatch.setattr(lm.model, "forward", forward)
    layouts = make_layouts(lm, n=2)
    rows = sample(lm, layouts, [[np.full(4, 0.5)], [np.full(7, 0.5)]])
    assert [(len(row.written[0]), row.unfinished) for (row,) in rows] == [(4, True), (7, True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["infill", "gaps"])
def test_rows_that_outgrow_the_lm_are_unfinished_and_change_no_other(kind, mode):
    """256 positions: a text of 120 tokens has room for its prompt, one of 300 in infill mode has not."""
    lm = make_noise_lm(kind, mode=mode)
    rng = np.random.default_rng(0)
    layouts = [lm.lay_out(ids, lm.draw_mask(ids, rng)) for ids in (np.arange(1, n) % 200 + 1 for n in (6, 120, 300))]
    never_ends, _ = end_at(lm, 10_000)
    lm.model.forward = never_ends
    uniforms = [[rng.random(20)], [rng.random(400)], [rng.random(400)]]
    rows = [row for (row,) in sample(lm, layouts, uniforms)]
    assert all(row.unfinished for row in rows)
    assert rows[0].n_drawn == 20
    assert rows[1].n_fed == 256 - len(layouts[1][0].read)
    assert (rows[2].n_fed == 0) == (mode == "infill")
    (alone,) = sample(lm, layouts[:1], uniforms[:1])
    assert alone[0].text == rows[0].text


@pytest.mark.parametrize("mode", ["gaps", "half"])
def test_kept_tokens_are_kept_by_construction(mode):
    lm = make_noise_lm("llama", mode=mode)
    ids = np.array([11, 12, 13, 14, lm.markers.separator, 15, 16, 17, 18])
    rng = np.random.default_rng(4)
    masked = lm.draw_mask(ids, rng)
    pieces = lm.lay_out(ids, masked)
    n_gaps = sum(p.written is not None for p in pieces)
    assert n_gaps >= 1
    steps = iter(range(10**6))
    inner = lm.model.forward

    def ends_every_third(**kwargs):
        out = inner(**kwargs)
        out.logits[:, -1, lm.markers.end] = 1e9 if next(steps) % 3 == 2 else -1e9
        return out

    lm.model.forward = ends_every_third
    (rows,) = sample(lm, [pieces], [list(rng.random((3, 60)))])
    for row in rows:
        assert row.done
        assert len(row.written) == n_gaps
        rest = row.text
        for piece, written in zip(pieces, [*row.written, None], strict=False):
            assert rest[: len(piece.kept)] == piece.kept
            rest = rest[len(piece.kept) + len(written or []) :]
        assert not rest


def test_the_lm_sees_what_it_was_trained_on():
    """Tokens fed while sampling, gap by gap, are the training sequence with the drawn tokens in the gaps."""
    lm = make_noise_lm("llama", mode="gaps")
    m = lm.markers
    pieces = lm.lay_out(np.arange(20, 26), np.array([0, 1, 0, 0, 1, 0], dtype=bool))
    row = Row(0, pieces, np.zeros(20), 20)
    fed = pieces[0].read
    drawn = iter([7, 8, m.end, 9, m.end])
    while not row.done:
        fed.append(row.feed(next(drawn) if not row.pending else -1, m))
    assert row.text == [20, 7, 8, 22, 23, 9, 25]
    expected = [m.end, 20, m.mask, 22, 23, m.mask, 25, m.write, 7, 8, m.end, 22, 23, m.mask, 25, m.write, 9, m.end]
    assert fed == expected
    assert row.n_drawn == 5


def test_inverse_cdf_takes_the_largest_first_and_never_leaves_the_top_k():
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.25, 0.15]])).repeat(6, 1)
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.99, 1 - 1e-12], dtype=torch.float64)
    assert draw_from_top_k(logits, uniforms, k=4).tolist() == [1, 1, 2, 2, 0, 0]
    assert draw_from_top_k(logits, uniforms, k=2).tolist() == [1, 1, 1, 2, 2, 2]  # 2/3 and 1/3
    assert draw_from_top_k(logits, uniforms, k=1).tolist() == [1] * 6
    assert draw_from_top_k(logits, uniforms, k=99).tolist() == draw_from_top_k(logits, uniforms, k=4).tolist()


@pytest.mark.parametrize("n", [30, 64 * 5, 5000, 5003])
def test_top_k_by_blocks_is_top_k(n):
    logits = torch.randn(7, n, generator=torch.Generator().manual_seed(0))
    values, tokens = top_k(logits, 5)
    expected = logits.topk(5)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)


def test_marks_are_written_by_pairs_only():
    """An LM that likes nothing but marks."""
    lm = make_noise_lm("llama")
    inner, m = lm.model.forward, lm.markers

    def likes_marks(**kwargs):
        out = inner(**kwargs)
        out.logits[:, -1, [m.mask, m.write, m.separator]] = 1e4
        return out

    lm.model.forward = likes_marks
    pair = np.array([11, m.separator, 12])
    layouts = [lm.lay_out(ids, np.array([True, False, False])) for ids in (np.array([11, 12, 13]), pair)]
    (single,), (double,) = sample(lm, layouts, uniforms_for(layouts))
    assert not {m.mask, m.write, m.separator} & set(single.written[0])
    assert set(double.written[0]) == {m.separator}


def test_rows_that_are_taken_in_change_nothing(lm, monkeypatch):
    """Rows end behind every third token; with room for eight, new ones come in beside those that are half-way."""
    inner, sizes = lm.model.forward, []

    def forward(input_ids, **kwargs):
        out = inner(input_ids=input_ids, **kwargs)
        sizes.append(tuple(input_ids.shape))
        out.logits[:, -1, lm.markers.end] = torch.where(input_ids[:, -1] % 3 == 0, 1e9, -1e9)
        return out

    monkeypatch.setattr(lm.model, "forward", forward)
    layouts = make_layouts(lm, n=12)
    uniforms = uniforms_for(layouts, n_samples=2, length=30)
    expected = [[r.text for r in sample(lm, [p], [u])[0]] for p, u in zip(layouts, uniforms, strict=True)]
    sizes.clear()
    assert [[r.text for r in rows] for rows in sample(lm, layouts, uniforms, batch_rows=8)] == expected
    prompts = [i for i, (_, length) in enumerate(sizes) if length > 1]
    assert len(prompts) > 3
    taken_in = [i for i in prompts[1:] if sizes[i + 1][0] > 2 * sizes[i][0]]  # two samples each, and others besides
    assert bool(taken_in) == (lm.model.config.model_type != "opt") or taken_in


def test_columns_that_no_row_needs_any_more_are_let_go(monkeypatch):
    """Eighty rows of eight tokens at most, eight at a time: the cache is never as long as two of them in a row."""
    lm = make_noise_lm("llama")
    forward, _ = end_at(lm, 10_000)
    lengths = []

    def measured(past_key_values, **kwargs):
        out = forward(past_key_values=past_key_values, **kwargs)
        lengths.append(past_key_values.get_seq_length())
        return out

    monkeypatch.setattr(lm.model, "forward", measured)
    rng = np.random.default_rng(0)
    layouts = [[Piece([], [5] * 3 + [lm.markers.write], [])] for _ in range(40)]
    uniforms = [[rng.random(rng.integers(3, 9)) for _ in range(2)] for _ in layouts]
    rows = sample(lm, layouts, uniforms, batch_rows=8)
    assert [len(r.written[0]) for group in rows for r in group] == [len(u) for us in uniforms for u in us]
    assert len(lengths) > 50
    assert max(lengths) < 4 + 2 * 8


def test_a_token_of_no_probability_is_never_drawn():
    logits = torch.tensor([[0.0, -1e9, 0.0]]).repeat(3, 1)
    drawn = draw_from_top_k(logits, torch.tensor([0.0, 0.5, 1 - 1e-16], dtype=torch.float64), k=3)
    assert 1 not in drawn.tolist()
