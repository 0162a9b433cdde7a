"""The noise LM: masks, layouts, losses packed and padded, markers, encoding, training, resuming, its directory."""

import itertools
import math
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from noise_models import MARKERS as IDS
from noise_models import Messages, make_noise_lm, make_texts
from safetensors.torch import load_file

from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.noise import LM_MODES, causal_lm
from ebmcal.noise.causal_lm import (
    CARD,
    FAST_ARCHITECTURES,
    MARKERS,
    Layout,
    LmSettings,
    Markers,
    MaskedTexts,
    NoiseLm,
    add_markers,
    fit_noise_lm,
    fuse_activations,
    held_out_loss,
    mask_tokens,
    merge_masks,
    prepare_training,
    token_losses,
)
from ebmcal.progress import Reporter
from tiny_models import (
    LANGUAGE_MODELS,
    SENTENCES,
    make_language_model,
    random_texts,
    save_language_model,
    train_tokenizer,
)

MASK, SEP, WRITE, END = IDS.mask, IDS.separator, IDS.write, IDS.end
PAIR = np.array([1, 2, 3, SEP, 4, 5])


def bare_lm(mode):
    model = SimpleNamespace(config=SimpleNamespace(n_positions=1000))
    return NoiseLm(model, None, IDS, mode, mask_ratio=0.4)


def test_a_run_of_masked_tokens_becomes_one_mask():
    ids, masked = np.arange(8), np.array([1, 1, 0, 1, 0, 0, 1, 1], dtype=bool)
    assert merge_masks(ids, masked, MASK) == [MASK, 2, MASK, 4, 5, MASK]
    assert merge_masks(ids, np.ones(8, dtype=bool), MASK) == [MASK]
    assert merge_masks(ids, np.zeros(8, dtype=bool), MASK) == list(range(8))


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30))
def test_merging_keeps_the_unmasked_tokens_in_order(tokens):
    ids, masked = np.array([t for t, _ in tokens], dtype=np.int64), np.array([m for _, m in tokens], dtype=bool)
    merged = merge_masks(ids, masked, MASK)
    assert [t for t in merged if t != MASK] == ids[~masked].tolist()
    assert not any(a == b == MASK for a, b in itertools.pairwise(merged))


def test_each_token_is_masked_independently_with_the_given_probability():
    rng = np.random.default_rng(0)
    masks = np.array([mask_tokens(np.arange(40), 0.4, rng, SEP) for _ in range(2000)])
    np.testing.assert_allclose(masks.mean(axis=0), 0.4, atol=0.05)  # 4.5 standard deviations
    assert (masks[:, 1:] & masks[:, :-1]).mean() == pytest.approx(0.16, abs=0.01)


def test_the_separator_is_never_masked_and_something_always_is():
    rng = np.random.default_rng(0)
    for ratio in (0.001, 0.5, 0.999):
        masks = np.array([mask_tokens(PAIR, ratio, rng, SEP) for _ in range(200)])
        assert not masks[:, 3].any()
        assert masks.any(axis=1).all()
    assert not mask_tokens(np.array([SEP]), 0.9, rng, SEP).any()


@pytest.mark.parametrize(
    ("mode", "masked", "expected"),
    [
        ("infill", [0, 1, 1, 0, 0, 0], Layout([END, 1, MASK, SEP, 4, 5, WRITE], PAIR.tolist())),
        ("plain", [0] * 6, Layout([END, WRITE], PAIR.tolist())),
    ],
)
def test_layouts(mode, masked, expected):
    assert bare_lm(mode).lay_out(PAIR, np.array(masked, dtype=bool)) == expected


def test_the_loss_is_on_the_target_and_the_end_of_text():
    lm = bare_lm("infill")
    ids, has_loss = lm.training_sequence(lm.lay_out(np.array([1, 2]), np.array([False, True])))
    assert ids.tolist() == [END, 1, MASK, WRITE, 1, 2, END]
    assert has_loss.tolist() == [False] * 4 + [True] * 3


LENGTHS = [2, 5, 5, 9, 20]


def make_sequences():
    return [(ids, np.random.default_rng(i).random(len(ids)) < 0.6) for i, ids in enumerate(random_texts(LENGTHS))]


def direct_losses(model, sequences):
    """One sequence at a time, without packing or padding."""
    losses = []
    for ids, has_loss in sequences:
        logits = model(input_ids=torch.tensor(ids)[None]).logits[0]
        values = F.cross_entropy(logits[:-1], torch.tensor(ids)[1:], reduction="none")
        losses.append(values[torch.tensor(has_loss)[1:]])
    return torch.cat(losses)


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_token_losses_and_gradients_packed_padded_and_one_by_one(kind):
    sequences, results = make_sequences(), []
    for packed in (False, True):
        model = make_language_model(kind)
        if packed:
            prepare_training(model)
            assert (model.config._attn_implementation == "ebmcal_packed") == (kind in FAST_ARCHITECTURES)
            assert model.get_input_embeddings().sparse == (kind in ("gpt2", "opt"))  # their output layer is tied
        losses = token_losses(model, sequences)
        losses.sum().backward()
        results.append((losses.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (padded, padded_gradients), (packed, packed_gradients) = results
    expected = direct_losses(make_language_model(kind), sequences).detach()
    assert expected.std() > 0.05
    torch.testing.assert_close(padded, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=1e-5)
    for name, gradient in padded_gradients.items():
        torch.testing.assert_close(packed_gradients[name], gradient, atol=2e-5, rtol=1e-4, msg=name)


def test_every_fast_architecture_is_tested():
    assert set(LANGUAGE_MODELS) > FAST_ARCHITECTURES


def test_the_fused_activation_of_gpt2_is_the_same_function():
    model, ids = make_language_model("gpt2"), torch.arange(5, 40)[None]
    with torch.no_grad():
        expected = model(ids).logits
        fuse_activations(model)
        assert {type(block.mlp.act) for block in model.transformer.h} == {torch.nn.GELU}
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("spare", [0, 9])  # embeddings beyond the vocabulary, as some models have
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])  # tied and separate output embeddings
def test_markers_are_added_once_and_start_from_similar_texts(kind, spare):
    tokenizer = train_tokenizer()
    n, end = len(tokenizer), tokenizer.eos_token_id
    model = make_language_model(kind, vocab_size=n + spare)
    similar = [tokenizer(text)["input_ids"] for text in MARKERS.values()]
    markers = add_markers(model, tokenizer)
    assert markers == Markers(n, n + 1, n + 2, end)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        assert layer.weight.shape[0] == n + max(3, spare)
        for marker, ids in zip((n, n + 1, n + 2), similar, strict=True):
            torch.testing.assert_close(layer.weight[marker], layer.weight[ids].mean(dim=0))
    with torch.no_grad():
        model.get_input_embeddings().weight[n:] += 1  # as if it had been trained
    trained = model.get_input_embeddings().weight.clone()
    assert add_markers(model, tokenizer) == markers
    assert torch.equal(model.get_input_embeddings().weight, trained)


def test_an_lm_without_an_end_of_text_token_is_rejected():
    tokenizer = train_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(EbmcalError, match=r"no end-of-text token.*eos_token"):
        add_markers(make_language_model("llama", vocab_size=len(tokenizer)), tokenizer)


def test_texts_survive_encoding_and_contain_no_markers():
    lm = make_noise_lm()
    for text in ("the film is dull, but honest.", "Ünïcödé — 映画 😀", "two  spaces\tand a tab"):
        ids = lm.encode((text, None))
        assert lm.decode(ids) == text
        assert not set(ids) & {lm.markers.mask, lm.markers.separator, lm.markers.write, lm.markers.end}


def test_pairs_are_joined_and_the_longer_sentence_is_truncated_first():
    lm = make_noise_lm(max_length=20)
    long, short = "the film is worth the time. " * 5, "a joy"
    n_short = len(lm.encode((short, None)))
    for pair in ((long, short), (short, long), (long, long), (short, short)):
        ids = lm.encode(pair)
        (where,) = np.flatnonzero(ids == lm.markers.separator)
        assert len(ids) == (20 if long in pair else 2 * n_short + 1)
        if pair[0] is short:
            assert where == n_short
        elif pair[1] is short:
            assert len(ids) - where - 1 == n_short
        else:
            assert where in (9, 10)
    assert len(lm.encode((long, None))) == 20


def test_an_lm_can_read_the_label_first():
    lm = replace(make_noise_lm(), label_names=("bad", "very good"))
    ids = lm.encode(("the film is dull", None))
    masked = np.arange(len(ids)) == 1
    without = lm.lay_out(ids, masked)
    for label, name in enumerate(lm.label_names):
        layout = lm.lay_out(ids, masked, label)
        n = len(layout.prompt) - len(without.prompt)
        assert lm.tokenizer.decode(layout.prompt[1 : 1 + n]) == f"{name}:\n"
        assert [layout.prompt[0], *layout.prompt[1 + n :]] == without.prompt
        assert not lm.training_sequence(layout)[1][: len(layout.prompt)].any()
    assert lm.lay_out(ids, masked, -1) == without


@pytest.mark.parametrize("mode", LM_MODES)
def test_masks_are_new_each_epoch_and_a_function_of_the_position(mode):
    lm = make_noise_lm(mode=mode)
    texts = make_texts(list(zip(SENTENCES[:8], SENTENCES[8:16], strict=True)))
    plan = MaskedTexts(lm, texts, np.arange(8), 40, seed=3)
    items = [plan[p][0].tolist() for p in range(40)]
    again = MaskedTexts(lm, texts, np.arange(8), 40, seed=3)
    assert [again[p][0].tolist() for p in reversed(range(40))][::-1] == items
    n_distinct = len({tuple(item) for item in items})
    assert n_distinct == 8 if mode == "plain" else n_distinct > 30


@pytest.mark.parametrize("mode", LM_MODES)
def test_empty_texts_do_not_stop_the_training(mode):
    lm = make_noise_lm(mode=mode)
    prepare_training(lm.model)
    plan = MaskedTexts(lm, make_texts([("", ""), ("the film", ""), ("", "the film")]), np.arange(3), 3, seed=0)
    sequences = sorted((plan[p] for p in range(3)), key=lambda item: len(item[0]))
    assert torch.isfinite(token_losses(lm.model, sequences)).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sequences_that_outgrow_the_lm_are_truncated(kind):
    """256 positions; the masked text and the text together have more."""
    lm = make_noise_lm(kind, max_length=200)
    ids, has_loss = MaskedTexts(lm, make_texts(["the film is dull " * 50]), np.arange(1), 1, seed=0)[0]
    assert len(ids) == len(has_loss) == lm.n_positions == 256
    assert torch.isfinite(token_losses(lm.model, [(ids, has_loss)])).all()


def test_the_held_out_loss_is_the_mean_over_target_tokens():
    lm, texts, rows = make_noise_lm(), make_texts(), np.arange(0, 120, 3)
    plan = MaskedTexts(lm, texts, rows, len(rows), seed=0)
    with torch.no_grad():
        expected = direct_losses(lm.model, [plan[p] for p in range(len(rows))]).mean()
    assert held_out_loss(lm, texts, rows) == pytest.approx(expected.item(), rel=1e-4)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    directory = save_language_model(tmp_path_factory.mktemp("lm") / "small")
    return LmSettings(
        str(directory), "infill", steps=30, batch_size=8, learning_rate=1e-2, max_length=32, precision="fp32"
    )


def fit(settings, root, texts=None, reporter=None):
    return fit_noise_lm(settings, texts or make_texts(), "data", root, reporter or Reporter())


def test_training_lowers_the_perplexity_and_is_done_once(settings, tmp_path, monkeypatch):
    messages = Messages()
    directory, card = fit(settings, tmp_path, reporter=messages)
    assert card["perplexity"] < card["perplexity_before"] / 2
    assert card["steps_done"] == 30
    assert any("30 steps, perplexity on held-out texts" in line for line in messages.lines)
    assert not (directory.parent / "checkpoints").exists()
    lm = NoiseLm.load(directory)
    assert (lm.mode, lm.mask_ratio, lm.max_length) == ("infill", 0.4, 32)
    loss = held_out_loss(lm, make_texts(), np.arange(0, 120, 20))
    assert math.exp(loss) == pytest.approx(card["perplexity"], rel=1e-4)
    monkeypatch.setattr(causal_lm, "fit", lambda *_: pytest.fail("trained again"))
    assert fit(settings, tmp_path) == (directory, card)


def test_other_settings_or_data_are_another_lm(settings):
    keys = {settings.key("data"), settings.key("other"), replace(settings, steps=31).key("data")}
    assert len(keys) == 3
    assert settings.key("data") == replace(settings).key("data")


@pytest.fixture(scope="module")
def open_ended(settings, tmp_path_factory):
    """Settings without a number of steps, evaluated every four steps; the directory and card of such a training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal_lm, "EVAL_STEPS", 4)
        patch.setattr(causal_lm, "MAX_EPOCHS", 50)
        found = replace(settings, steps=None)
        yield found, *fit(found, tmp_path_factory.mktemp("uninterrupted"))


def weights(directory):
    return {name: tensor.tolist() for name, tensor in load_file(directory / "model.safetensors").items()}


def test_without_a_number_of_steps_training_ends_when_the_held_out_loss_is_flat(open_ended):
    _, _, card = open_ended
    assert card["steps_done"] % 4 == 0
    assert 8 < card["steps_done"] < 50 * 100 // 8
    assert card["perplexity"] < card["perplexity_before"] / 2


@pytest.mark.parametrize("when", ["before the end", "at the last evaluation"])
def test_an_interrupted_training_resumes_exactly(open_ended, tmp_path, monkeypatch, when):
    """SIGTERM during an evaluation: a checkpoint that was written when training ended must not be trained further."""
    settings, directory, card = open_ended
    last, calls = card["steps_done"] // 4 - (when == "before the end"), iter(range(10**6))

    def interrupting(*args, **kwargs):
        if next(calls) == last:  # call 0 is before the training
            os.kill(os.getpid(), signal.SIGTERM)
        return held_out_loss(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(causal_lm, "held_out_loss", interrupting)
        with pytest.raises(Interrupted):
            fit(settings, tmp_path)
    resumed, resumed_card = fit(settings, tmp_path)
    assert resumed_card | {"seconds": 0} == card | {"seconds": 0}
    assert weights(resumed) == weights(directory)


def test_a_corrupt_noise_lm_is_named(settings, tmp_path):
    directory, _ = fit(replace(settings, steps=0), tmp_path)
    (directory / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EbmcalError, match=r"model is not a usable noise LM: .* Delete it"):
        NoiseLm.load(directory)


def test_a_diverging_training_stops_and_names_the_step(settings, tmp_path):
    with pytest.raises(EbmcalError, match=r"diverged at step \d+: the loss is (nan|inf)"):
        fit(replace(settings, learning_rate=1e30), tmp_path)
    assert not list(tmp_path.rglob(CARD))
