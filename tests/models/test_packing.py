"""Packed passes against the stock model on padded batches, for every architecture that can be packed."""

import numpy as np
import pytest
import torch
import transformers as hf

from ebmcal.models import packing
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.packing import (
    ATTENTION,
    PACKED_ENCODERS,
    classify_packed,
    classify_padded,
    pack,
    packs,
    pad,
    use_packing,
)
from tiny_models import ENCODERS, make_encoder, random_texts

LENGTHS = [1, 4, 4, 4, 7, 12, 12, 30]
NOT_PACKED = [kind for kind in ENCODERS if kind not in PACKED_ENCODERS]


def make_batch(pairs=True):
    texts = random_texts(LENGTHS)
    types = [np.repeat([0, 1], [n - n // 2, n // 2]) if pairs else np.zeros(n, dtype=int) for n in LENGTHS]
    return pack(texts, types)


def stock(model, batch, pairs):
    """The model as transformers runs it: padded on the right, with an attention mask."""
    ids, mask, types = pad(batch, model.config.pad_token_id)
    types = {"token_type_ids": types} if pairs else {}
    return model(input_ids=ids, attention_mask=mask, **types).logits


@pytest.mark.parametrize("kind", PACKED_ENCODERS)
def test_packed_logits_loss_and_gradients_are_the_stock_models(kind):
    pairs = kind in ("bert", "electra")  # the others have no segment embeddings
    batch, labels = make_batch(pairs), torch.arange(len(LENGTHS)) % 3
    expected, ours = make_encoder(kind), make_encoder(kind)
    use_packing(ours)
    gradients = []
    for model, logits in ((expected, stock(expected, batch, pairs)), (ours, classify_packed(ours, batch))):
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        gradients.append((logits.detach(), loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (logits, loss, grads), (our_logits, our_loss, our_grads) = gradients
    assert logits.std(dim=0).min() > 0.05  # the comparison would show nothing on constant logits
    torch.testing.assert_close(our_logits, logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(our_loss, loss, atol=1e-5, rtol=1e-5)
    assert our_grads.keys() == grads.keys()
    for name, gradient in grads.items():
        assert (gradient is None) == (our_grads[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(our_grads[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("biased", [False, True])
def test_under_bfloat16_a_cpu_attends_in_float32(biased):
    """The output is that of float32 on the same numbers, rounded once; gradients reach queries, keys and values."""
    batch, generator = make_batch(), torch.Generator().manual_seed(0)
    states = [
        torch.randn(1, 2, sum(LENGTHS), 8, generator=generator).bfloat16().requires_grad_() for _ in range(3)
    ]  # fmt: skip
    bias = torch.randn(1, 2, max(LENGTHS), max(LENGTHS), generator=generator) if biased else None
    settings = {"is_causal": False, "groups": batch.groups, "position_bias": bias}
    expected, _ = packing.packed_attention(None, *(x.float() for x in states), None, **settings)
    expected_gradients = torch.autograd.grad(expected.square().sum(), states)
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = packing.packed_attention(None, *states, None, **settings)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, expected.bfloat16())
    gradients = torch.autograd.grad(ours.float().square().sum(), states)
    for ours_of, expected_of in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours_of, expected_of, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("kind", ["bert", "electra"])
def test_segment_numbers_reach_the_model(kind):
    model = make_encoder(kind)
    use_packing(model)
    alone, paired = (classify_packed(model, make_batch(pairs)) for pairs in (False, True))
    assert (alone - paired).abs().max() > 1e-3


@pytest.mark.parametrize("kind", PACKED_ENCODERS)
def test_texts_do_not_see_their_neighbours(kind):
    model = make_encoder(kind)
    use_packing(model)
    texts = random_texts(LENGTHS)
    together = classify_packed(model, pack(texts))
    alone = torch.cat([classify_packed(model, pack([text])) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", NOT_PACKED)
def test_other_architectures_are_padded(kind):
    stock_model, model = make_encoder(kind), EnergyClassifier(make_encoder(kind))
    assert not model.packed
    batch = make_batch(pairs=kind == "albert")
    logits, energies = model(batch)
    alone = torch.cat(
        [stock(stock_model, pack([t], [s]), kind == "albert") for t, s in split(batch)]
    )  # no padding at all: what the texts give by themselves
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(energies, -torch.logsumexp(alone, -1), atol=1e-5, rtol=1e-5)


def split(batch):
    cuts = np.cumsum(batch.lengths)[:-1]
    return zip(np.split(batch.input_ids.numpy(), cuts), np.split(batch.token_types.numpy(), cuts), strict=True)


_IDS = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0}
_BART = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Bart", {"d_model": 16, "max_position_embeddings": 64, "dropout": 0.0, **_BART, **_IDS}),
        ("T5", {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0, **_IDS}),
    ],
)
def test_middle_states_of_an_encoder_with_a_decoder_are_the_encoders(name, settings):
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")(vocab_size=120, num_labels=3, **settings)
    model = getattr(hf, f"{name}ForSequenceClassification")(config).eval()
    batch = pack([np.array([5, 6, 3]), np.array([7, 8, 9, 10, 3])])
    with torch.no_grad():
        logits, features = packing.classify_with_features(model, batch)
        alone = model.get_encoder()(input_ids=torch.tensor([[5, 6, 3]]), output_hidden_states=True).hidden_states[1]
        torch.testing.assert_close(features, packing.mean_states(model, batch, middle=True))
        torch.testing.assert_close(features[0], alone[0].mean(dim=0))
        torch.testing.assert_close(logits, packing.classify_padded(model, batch))


def test_a_model_without_a_limit_has_no_longest_text():
    assert packing.longest_text(hf.XLNetConfig()) is None


def test_classify_padded_is_the_same_for_a_packable_architecture():
    batch = make_batch()
    padded, packed = make_encoder("bert"), make_encoder("bert")
    use_packing(packed)
    torch.testing.assert_close(classify_padded(padded, batch), classify_packed(packed, batch), atol=1e-5, rtol=1e-5)


def test_which_architectures_pack():
    assert {kind for kind in ENCODERS if packs(make_encoder(kind))} == set(PACKED_ENCODERS)


def test_dropout_acts_in_training_and_not_in_evaluation():
    model = make_encoder("bert", attention_probs_dropout_prob=0.5)
    use_packing(model)
    batch = make_batch()
    assert torch.equal(classify_packed(model, batch), classify_packed(model, batch))
    model.train()
    assert not torch.equal(classify_packed(model, batch), classify_packed(model, batch))


def test_a_pack_knows_its_groups_starts_and_positions():
    batch = pack(random_texts([1, 2, 2, 3]))
    assert batch.groups == [(0, 1, 1), (1, 5, 2), (5, 8, 3)]
    assert batch.starts.tolist() == [0, 1, 3, 5]
    assert batch.positions(offset=2).tolist() == [2, 2, 3, 2, 3, 2, 3, 4]
    assert batch.to("cpu").lengths is batch.lengths


def test_pack_takes_sorted_texts_only():
    with pytest.raises(ValueError, match="shortest first"):
        pack(random_texts([3, 2]))


def test_padding_is_masked():
    ids, mask, types = pad(pack([np.array([7]), np.array([8, 9])], [np.array([0]), np.array([0, 1])]), pad_id=1)
    assert ids.tolist() == [[7, 1], [8, 9]]
    assert mask.tolist() == [[1, 0], [1, 1]]
    assert types.tolist() == [[0, 0], [0, 1]]


def test_the_saved_config_does_not_mention_packing(tmp_path):
    """A plain checkpoint must load where ebmcal is not installed."""
    model = make_encoder("bert")
    use_packing(model)
    model.save_pretrained(tmp_path)
    assert ATTENTION not in (tmp_path / "config.json").read_text()


def reference_varlen(q, k, v, ends, ends_k, longest, longest_k, *, dropout_p, softmax_scale, causal):
    """What flash-attn's kernel is documented to do, text by text: q, k, v [T, H, D]."""
    assert ends.dtype == torch.int32
    assert torch.equal(ends, ends_k)
    assert dropout_p == 0.0
    lengths = ends.diff()
    assert longest == longest_k == lengths.max()
    parts = (x.transpose(0, 1).split(lengths.tolist(), dim=1) for x in (q, k, v))
    mixed = [
        torch.nn.functional.scaled_dot_product_attention(*text, scale=softmax_scale, is_causal=causal)
        for text in zip(*parts, strict=True)
    ]
    return torch.cat(mixed, dim=1).transpose(0, 1)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_a_varlen_kernel_is_given_the_texts_as_they_lie(kind, monkeypatch):
    """The kernel runs on CUDA only; here a loop with its signature stands in for it."""
    model, batch = make_encoder(kind), make_batch(pairs=False)
    use_packing(model)
    expected = classify_packed(model, batch)
    calls = []
    monkeypatch.setattr(packing, "varlen_kernel", lambda query: calls.append(query) or reference_varlen)
    torch.testing.assert_close(classify_packed(model, batch), expected, atol=1e-5, rtol=1e-5)
    assert len(calls) == 2  # one for each layer


def test_no_varlen_kernel_on_the_cpu():
    assert packing.varlen_kernel(torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16)) is None
