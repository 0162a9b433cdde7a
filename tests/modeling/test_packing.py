"""Packed passes equal the stock padded ones, for every architecture."""

import numpy as np
import pytest
import torch

from ebmcal.modeling.classifier import EnergyClassifier
from ebmcal.modeling.mean_pooling import MeanPoolingConfig, MeanPoolingForSequenceClassification
from ebmcal.modeling.packing import (
    PACKED_ENCODERS,
    Tokens,
    TokenTable,
    is_packable,
    max_positions,
    micro_batches,
    pack,
    packed_attention,
    padded_inputs,
)
from tiny_models import ENCODERS, make_encoder, random_texts

LENGTHS = [3, 9, 9, 4, 17, 3, 1]


def tokens(lengths=LENGTHS, seed=0):
    return [Tokens(text, np.zeros(len(text), dtype=np.uint8)) for text in random_texts(lengths, seed=seed)]


def mean_pooled(kind):
    backbone = make_encoder(kind).base_model
    return MeanPoolingForSequenceClassification(MeanPoolingConfig(backbone.config, num_labels=3), backbone).eval()


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("make", [make_encoder, mean_pooled], ids=["first token", "mean pooling"])
def test_packed_logits_equal_padded_ones_in_the_given_order(kind, make):
    stock, texts = make(kind), tokens()
    with torch.no_grad():
        expected = torch.cat([stock(torch.from_numpy(text.ids)[None]).logits for text in texts])
        model = EnergyClassifier(make(kind))
        model.encoder.load_state_dict(stock.state_dict())
        output = model.eval()(pack(texts), features=True)
    assert model.is_packed == (kind in PACKED_ENCODERS)
    torch.testing.assert_close(output.logits, expected, atol=1e-4, rtol=1e-4)
    assert output.features.shape == (len(texts), 16)


@pytest.mark.parametrize("kind", ["bert", "mpnet", "roberta"])
def test_packed_gradients_equal_padded_ones(kind):
    texts, labels = tokens(), torch.arange(len(LENGTHS)) % 3
    stock = make_encoder(kind)
    losses = [stock(torch.from_numpy(t.ids)[None], labels=y[None]).loss for t, y in zip(texts, labels, strict=True)]
    torch.stack(losses).sum().backward()
    model = EnergyClassifier(make_encoder(kind))
    torch.nn.functional.cross_entropy(model.eval()(pack(texts)).logits, labels, reduction="sum").backward()
    for (name, a), b in zip(stock.named_parameters(), model.encoder.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(b.grad, a.grad, atol=2e-4, rtol=1e-3, msg=name)


def test_segment_ids_of_pairs_are_used():
    model = EnergyClassifier(make_encoder("bert")).eval()
    ids = random_texts([6])[0]
    single, pair = Tokens(ids, np.zeros(6)), Tokens(ids, np.array([0, 0, 0, 1, 1, 1]))
    with torch.no_grad():
        a, b = model(pack([single])).logits, model(pack([pair])).logits
    assert not torch.allclose(a, b)


def test_padded_inputs_of_a_model_that_cannot_be_packed():
    model = make_encoder("albert")
    assert not is_packable(model)
    inputs = padded_inputs(model, pack(tokens([2, 4])))
    assert inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_micro_batches_cover_every_text_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 40, size=100)
    parts = list(micro_batches(lengths, budget=64))
    assert sorted(np.concatenate(parts)) == list(range(100))
    assert all(lengths[part].sum() <= 64 or len(part) == 1 for part in parts)


def test_a_token_table_returns_what_it_was_given():
    texts = tokens()
    for a, b in zip(TokenTable(texts), texts, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)


def test_bfloat16_attention_on_cpu_is_computed_in_float32():
    batch = pack(tokens([4, 4, 6]))
    q, k, v = (torch.randn(1, 2, 14, 8).bfloat16() for _ in range(3))
    module = torch.nn.Module()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, _ = packed_attention(module, q, k, v, None, groups=batch.groups)
    exact, _ = packed_attention(module, q.float(), k.float(), v.float(), None, groups=batch.groups)
    torch.testing.assert_close(mixed, exact.bfloat16())


def test_max_positions():
    assert max_positions(make_encoder("bert").config) == 64
    assert max_positions(make_encoder("roberta").config) == 62  # positions start after the padding index
    assert max_positions(mean_pooled("roberta").config) == 62
