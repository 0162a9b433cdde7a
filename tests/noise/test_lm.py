"""The noise LM: its losses packed and padded, its marks, its encoding, its training and the folder it leaves."""

import json
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from ebmcal.data import load_texts
from ebmcal.errors import EbmcalError, Interrupted
from ebmcal.noise import fitting
from ebmcal.noise.fitting import CARD, NoiseLmSettings, fit
from ebmcal.noise.lm import (
    PACKED_LANGUAGE_MODELS,
    MaskedTexts,
    NoiseLm,
    add_markers,
    held_out_loss,
    perplexity,
    prepare_training,
    token_losses,
)
from ebmcal.noise.masking import MODES, Markers, collapse, to_sequence
from ebmcal.progress import Reporter
from small_runs import make_small
from tiny_models import LANGUAGE_MODELS, SENTENCES, make_language_model, make_noise_lm, random_texts, train_tokenizer

LENGTHS = [2, 5, 5, 9, 20]


def make_batch():
    texts = random_texts(LENGTHS)
    learn = [np.random.default_rng(i).random(n) < 0.6 for i, n in enumerate(LENGTHS)]
    return texts, learn


def direct_losses(model, texts, learn):
    """One text at a time, without packing or padding."""
    losses = []
    for ids, wanted in zip(texts, learn, strict=True):
        logits = model(input_ids=torch.tensor(ids)[None]).logits[0]
        values = F.cross_entropy(logits[:-1], torch.tensor(ids)[1:], reduction="none")
        losses.append(values[torch.tensor(wanted)[1:]])
    return torch.cat(losses)


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_token_losses_packed_padded_and_one_by_one(kind):
    texts, learn = make_batch()
    results = []
    for packed in (False, True):
        model = make_language_model(kind)
        if packed:
            prepare_training(model)
            assert (model.config._attn_implementation == "ebmcal_packed") == (kind in PACKED_LANGUAGE_MODELS)
            assert model.get_input_embeddings().sparse == (kind in ("gpt2", "opt"))  # their heads share the weights
        losses = token_losses(model, texts, learn)
        losses.sum().backward()
        results.append((losses.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (padded, padded_gradients), (packed, packed_gradients) = results
    expected = direct_losses(make_language_model(kind), texts, learn).detach()
    assert expected.std() > 0.05
    torch.testing.assert_close(padded, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=1e-5)
    for name, gradient in padded_gradients.items():
        torch.testing.assert_close(packed_gradients[name], gradient, atol=2e-5, rtol=1e-4, msg=name)


def test_the_table_of_packed_language_models_is_tested():
    assert set(LANGUAGE_MODELS) > PACKED_LANGUAGE_MODELS


def test_a_first_token_has_no_loss():
    texts = random_texts([3, 4])
    losses = token_losses(make_language_model("llama"), texts, [np.ones(3, dtype=bool), np.ones(4, dtype=bool)])
    assert len(losses) == 2 + 3


def test_the_loss_masks_are_left_as_they_came():
    texts, learn = make_batch()
    learn = [np.ones_like(m) for m in learn]
    token_losses(make_language_model("llama"), texts[:1], learn[:1])
    assert all(m.all() for m in learn)


@pytest.mark.parametrize("spare", [0, 9])  # embeddings behind the vocabulary, as some models have
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])  # tied and separate output embeddings
def test_markers_are_added_once_and_begin_as_what_is_near(kind, spare):
    tokenizer = train_tokenizer(SENTENCES)
    n, end = len(tokenizer), tokenizer.eos_token_id
    model = make_language_model(kind, vocab_size=n + spare)
    near = [tokenizer(text)["input_ids"] for text in Markers.NEAR.values()]
    markers = add_markers(model, tokenizer)
    assert markers == Markers(n, n + 1, n + 2, end)
    assert len(tokenizer) == n + 3
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        assert layer.weight.shape[0] == n + max(3, spare)
        for mark, ids in zip((markers.mask, markers.separator, markers.write), near, strict=True):
            torch.testing.assert_close(layer.weight[mark], layer.weight[ids].mean(dim=0))
    with torch.no_grad():
        model.get_input_embeddings().weight[n:] += 1  # as if it had been trained
    trained = model.get_input_embeddings().weight.clone()
    assert add_markers(model, tokenizer) == markers
    assert torch.equal(model.get_input_embeddings().weight, trained)


def test_an_lm_without_an_end_of_text_is_refused():
    tokenizer = train_tokenizer(SENTENCES)
    tokenizer.eos_token = None
    with pytest.raises(EbmcalError, match=r"no end-of-text token.*eos_token"):
        add_markers(make_language_model("llama", vocab_size=len(tokenizer)), tokenizer)


def test_no_text_is_taken_for_a_mark():
    """Marks in a user's text would be read as marks; ordinary words are not."""
    lm = make_noise_lm()
    (ids,) = lm.encode([("the film is worth the time.", None)])
    assert not set(ids) & {lm.markers.mask, lm.markers.separator, lm.markers.write, lm.markers.end}


def test_texts_are_encoded_and_decoded_to_the_byte():
    lm = make_noise_lm()
    for text in ("the film is dull, but honest.", "Ünïcödé — 映画 😀", "two  spaces\tand a tab"):
        (ids,) = lm.encode([(text, None)])
        assert lm.decode(ids) == text


def test_pairs_are_joined_by_the_separator_and_the_longer_sentence_gives_way():
    lm = make_noise_lm(max_length=20)
    long, short = "the film is worth the time. " * 5, "a joy"
    n_short = len(lm.encode([(short, None)])[0])
    for pair in ((long, short), (short, long), (long, long), (short, short)):
        (ids,) = lm.encode([pair])
        (where,) = np.flatnonzero(ids == lm.markers.separator)
        assert len(ids) == (20 if long in pair else 2 * n_short + 1)
        if pair[0] is short:
            assert where == n_short
        elif pair[1] is short:
            assert len(ids) - where - 1 == n_short
        else:
            assert where in (9, 10)
    assert len(lm.encode([(long, None)])[0]) == 20


def test_gaps_hide_whole_words():
    lm = make_noise_lm(mode="gaps")
    (ids,) = lm.encode([("the film is zigzagging", "a quixotic joy")])
    words = ["the", "film", "is", "zigzagging", "quixotic", "joy"]
    rng, hidden = np.random.default_rng(0), set()
    for _ in range(60):
        masked = lm.draw_mask(ids, rng)
        text = lm.tokenizer.decode(collapse(ids, masked, lm.markers.mask))
        assert text.count("<SEP>") == 1
        for part in text.replace("<SEP>", " ").split("<M>"):
            assert set(part.split()) <= {*words, "a"}  # never a piece of a word
        hidden |= {word for word in words if word not in text}
    assert hidden == set(words)


@pytest.mark.parametrize("mode", MODES)
def test_masks_are_new_each_epoch_and_pure_in_the_position(mode):
    lm = make_noise_lm(mode=mode)
    texts = lm.encode([(s, t) for s, t in zip(SENTENCES[:8], SENTENCES[8:16], strict=True)])
    items = [MaskedTexts(lm, texts, 40, seed=3)[p][0].tolist() for p in range(40)]
    again = MaskedTexts(lm, texts, 40, seed=3)
    assert [again[p][0].tolist() for p in reversed(range(40))][::-1] == items
    distinct = len({tuple(item) for item in items})
    assert distinct == 8 if mode in ("plain", "continue") else distinct > (12 if mode == "half" else 30)


@pytest.mark.parametrize("mode", MODES)
def test_empty_texts_do_not_stop_the_training(mode):
    lm = make_noise_lm(mode=mode)
    prepare_training(lm.model)
    texts = lm.encode([("", None), ("the film", None), ("", ""), ("the film", "")])
    items = [MaskedTexts(lm, texts, 4, seed=0)[p] for p in range(4)]
    items.sort(key=lambda item: len(item[0]))
    ids, learn = zip(*items, strict=True)
    assert torch.isfinite(token_losses(lm.model, ids, learn)).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sequences_that_outgrow_the_lm_are_cut(kind):
    """256 positions; the masked text and the text together have more."""
    lm = make_noise_lm(kind, max_length=200)
    assert lm.positions == 256
    texts = [np.arange(200) % 100 + 1]
    ids, learn = MaskedTexts(lm, texts, 1, seed=0)[0]
    assert len(ids) == len(learn) == 256
    assert torch.isfinite(token_losses(lm.model, [ids], [learn])).all()


@pytest.mark.parametrize("n", [5, 100])
def test_the_held_out_loss_is_that_of_the_learned_tokens_of_64_texts_at_most(n):
    lm = make_noise_lm()
    texts = lm.encode([(s, None) for s in SENTENCES[:n]])
    items = [MaskedTexts(lm, texts, 64, seed=0)[p] for p in range(min(n, 64))]
    with torch.no_grad():
        expected = direct_losses(lm.model, *zip(*items, strict=True)).mean()
    assert held_out_loss(lm, texts) == pytest.approx(expected.item(), rel=1e-4)
    assert perplexity(expected.item()) == pytest.approx(math.exp(expected))
    assert math.isfinite(perplexity(1e9))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": s}) for s in SENTENCES))
    return load_texts(folder / "texts.jsonl", folder / "cache")


SETTINGS = NoiseLmSettings(
    "small", "gaps", steps=30, batch_size=8, learning_rate=2e-2, max_length=32, precision="fp32"
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


def test_fit_learns_and_leaves_a_folder_that_loads(texts, tmp_path):
    train, held_out = texts.take([i for i in range(120) if i % 6]), texts.take(range(0, 120, 6))
    card = fit(SETTINGS, train, held_out, tmp_path / "lm", Reporter())
    assert card["perplexity"] < card["perplexity_before"] / 2
    assert card["loss_last"] < card["loss_first"]
    assert not (tmp_path / "lm.work").exists()
    lm = NoiseLm.load(tmp_path / "lm")
    assert (lm.mode, lm.mask_ratio, lm.max_length) == ("gaps", 0.4, 32)
    assert perplexity(held_out_loss(lm, lm.encode(held_out.texts()))) == pytest.approx(card["perplexity"], rel=1e-4)
    before = (tmp_path / "lm" / CARD).stat().st_mtime_ns
    assert fit(SETTINGS, train, held_out, tmp_path / "lm", Reporter()) == card
    assert (tmp_path / "lm" / CARD).stat().st_mtime_ns == before


def weights(folder):
    return {name: tensor.tolist() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.fixture
def flat(texts, tmp_path, monkeypatch):
    """A fitting without a number of steps: settings, splits and what it leaves."""
    monkeypatch.setattr(fitting, "LOOK_EVERY", 4)
    monkeypatch.setattr(fitting, "MAX_PASSES", 50)
    settings = replace(SETTINGS, steps=None)
    splits = texts.take([i for i in range(120) if i % 6]), texts.take(range(0, 120, 6))
    return settings, splits, fit(settings, *splits, tmp_path / "undisturbed", Reporter())


def test_the_last_look_of_a_fitting_is_the_one_that_ended_it(flat, tmp_path, monkeypatch):
    """A look costs more than a step: one before, one every four steps, none twice."""
    settings, splits, card = flat
    looks = []

    def counted(*args, **kwargs):
        looks.append(held_out_loss(*args, **kwargs))
        return looks[-1]

    monkeypatch.setattr(fitting, "held_out_loss", counted)
    assert fit(settings, *splits, tmp_path / "lm", Reporter())["perplexity"] == card["perplexity"]
    assert len(looks) == 1 + card["steps_done"] // 4
    assert card["perplexity"] == perplexity(looks[-1])
    lm = NoiseLm.load(tmp_path / "lm")
    assert held_out_loss(lm, lm.encode(splits[1].texts())) == pytest.approx(looks[-1], rel=1e-4)
    looks.clear()
    exact = fit(replace(settings, steps=6), *splits, tmp_path / "exact", Reporter())
    assert len(looks) == 2
    assert exact["perplexity"] == perplexity(looks[-1])


def test_without_a_number_of_steps_fitting_ends_when_the_held_out_loss_no_longer_falls(flat):
    card = flat[2]
    assert card["steps_done"] % 4 == 0
    assert 8 < card["steps_done"] < 50 * 100 // 8
    assert card["steps"] is None
    assert card["perplexity"] < card["perplexity_before"] / 2


@pytest.mark.parametrize("when", ["before", "at the end"])
def test_such_a_fitting_resumes_to_the_bit(flat, tmp_path, monkeypatch, when):
    """SIGTERM between two looks, and at the very look that ends it: its checkpoint must not be trained further."""
    settings, splits, card = flat
    looks = iter(range(10**6))
    kill_at = card["steps_done"] // 4 - (1 if when == "before" else 0)  # look 0 is before the training

    def killing(*args, **kwargs):
        if next(looks) == kill_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return held_out_loss(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "held_out_loss", killing)
        with pytest.raises(Interrupted):
            fit(settings, *splits, tmp_path / "lm", Reporter())
    resumed = fit(settings, *splits, tmp_path / "lm", Reporter())
    assert resumed | {"seconds": 0} == card | {"seconds": 0}
    assert weights(tmp_path / "lm") == weights(tmp_path / "undisturbed")


def test_no_steps_leave_the_weights_as_they_are(texts, tmp_path):
    card = fit(replace(SETTINGS, steps=0), texts, texts, tmp_path / "lm", Reporter())
    assert card["perplexity"] == card["perplexity_before"]
    assert (card["steps_done"], card["loss_first"]) == (0, None)
    assert NoiseLm.load(tmp_path / "lm").mode == "gaps"


def test_an_lm_of_another_version_is_refused(texts, tmp_path):
    card = fit(replace(SETTINGS, steps=0), texts, texts, tmp_path / "lm", Reporter())
    for there in (card | {"format": 1}, {k: v for k, v in card.items() if k != "format"}):
        (tmp_path / "lm" / CARD).write_text(json.dumps(there))
        with pytest.raises(EbmcalError, match=r"made by another version \(format 1; this one reads 3\).*noise fit"):
            NoiseLm.load(tmp_path / "lm")


def test_an_lm_may_read_the_label_first(texts):
    lm = make_noise_lm(mode="infill")
    told = replace(lm, label_names=("bad", "very good"))
    (ids,) = lm.encode([("the film is dull", None)])
    masked = np.arange(len(ids)) == 1
    for label, name in enumerate(told.label_names):
        (piece,) = told.lay_out(ids, masked, label)
        assert piece.before[0] == lm.markers.end
        assert lm.tokenizer.decode(piece.before[1:]) == f"{name}:\n"
        sequence, learn = to_sequence([piece], lm.markers)
        assert not learn[: len(piece.before)].any()
        untold = to_sequence(lm.lay_out(ids, masked), lm.markers)[0].tolist()
        assert [sequence[0], *sequence[len(piece.before) :]] == untold
    assert told.lay_out(ids, masked, -1) == lm.lay_out(ids, masked, 1) == lm.lay_out(ids, masked)
    of_zero, of_one = (MaskedTexts(told, [ids], 1, 0, np.array([label]))[0][0].tolist() for label in (0, 1))
    assert of_zero != of_one


def test_the_key_depends_on_settings_and_texts(texts):
    key = SETTINGS.key(texts)
    assert key == SETTINGS.key(texts)
    assert key != SETTINGS.key(texts.take(range(50)))
    assert key != NoiseLmSettings("small", "gaps", steps=31).key(texts)


def test_a_damaged_noise_lm_is_named(texts, tmp_path):
    fit(NoiseLmSettings("small", "gaps", steps=1, batch_size=2), texts, texts, tmp_path / "lm", Reporter())
    (tmp_path / "lm" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EbmcalError, match="not a usable noise LM"):
        NoiseLm.load(tmp_path / "lm")


def test_a_diverging_lm_stops_with_the_step(texts, tmp_path):
    settings = NoiseLmSettings("small", "gaps", steps=20, batch_size=4, learning_rate=1e30, precision="fp32")
    with pytest.raises(EbmcalError, match=r"diverged at step \d+: .*(loss|gradient) is (nan|inf)"):
        fit(settings, texts, texts, tmp_path / "lm", Reporter())
    assert not (tmp_path / "lm").exists()


def test_gpt2s_activation_is_fused_and_the_same():
    stock, ids = make_language_model("gpt2"), torch.arange(5, 40)[None]
    with torch.no_grad():
        expected = stock(ids).logits
        lm = NoiseLm(stock, None, Markers(1, 2, 3, 4), "infill", 0.4)
        assert {type(block.mlp.act) for block in lm.model.transformer.h} == {torch.nn.GELU}
        torch.testing.assert_close(lm.model(ids).logits, expected, atol=1e-6, rtol=1e-5)
