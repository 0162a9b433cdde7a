"""Noise of a masked LM that is trained here: what it fills in and what it leaves alone."""

import numpy as np
import pytest
import torch
import transformers
from noise_models import make_texts
from transformers import BertConfig, BertForMaskedLM

from ebmcal.noise.masked_lm import MaskedLm
from tiny_models import ENCODERS, SENTENCES, make_wordpiece

ROWS = [(text, None) for text in SENTENCES[::3]]


@pytest.fixture(scope="module")
def lm():
    """A BERT of two layers that has learned to fill in masked words of `SENTENCES`."""
    torch.manual_seed(0)
    tokenizer = make_wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model, rng = BertForMaskedLM(config), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    is_word = ~torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
    for _ in range(150):
        masked = (torch.from_numpy(rng.random(is_word.shape)) < 0.3) & is_word
        ids = batch["input_ids"].masked_fill(masked, tokenizer.mask_token_id)
        labels = batch["input_ids"].masked_fill(~masked, -100)
        model(input_ids=ids, attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return MaskedLm(model, tokenizer, mask_ratio=0.3)


def rngs(n, seed=0):
    return [np.random.default_rng([seed, i]) for i in range(n)]


def likelihood(lm, rows):
    """The mean log-probability of each word, with only that word masked."""
    found = []
    for text, _ in rows:
        ids = lm.tokenizer(text, return_tensors="pt")["input_ids"][0]
        places = range(1, len(ids) - 1)
        batch = ids.repeat(len(places), 1)
        batch[range(len(places)), places] = lm.tokenizer.mask_token_id
        with torch.no_grad():
            log_probs = lm.model(input_ids=batch).logits[range(len(places)), places].log_softmax(dim=-1)
        found += log_probs[range(len(places)), ids[1:-1]].tolist()
    return np.mean(found)


def test_filled_in_words_are_more_likely_than_random_ones(lm):
    noise = lm.rewrite(ROWS, rngs(len(ROWS)))
    assert np.mean([a != b for a, b in zip(noise, ROWS, strict=True)]) > 0.3
    words = sorted({word for text in SENTENCES for word in text.split()})
    rng = np.random.default_rng(0)
    random = [(" ".join(str(rng.choice(words)) if rng.random() < 0.3 else w for w in t.split()), None) for t, _ in ROWS]
    assert likelihood(lm, noise) > likelihood(lm, random) + 1.0


def test_a_text_depends_on_its_row_and_generator_only(lm):
    together = lm.rewrite(ROWS[:6], rngs(6))
    assert [lm.rewrite([row], [rng])[0] for row, rng in zip(ROWS[:6], rngs(6), strict=True)] == together
    assert lm.rewrite(ROWS[:6], rngs(6, seed=5)) != together
    texts = make_texts()
    written = lm.write(texts, rngs(12))
    assert [lm.write(texts, [rng])[0] for rng in rngs(12)] == written
    assert len({text for text, _ in written} - set(SENTENCES)) > 3


def test_unmasked_text_is_kept_exactly(lm):
    for rng in rngs(20):
        ((noise, pair),) = lm.rewrite([("The  FILM,\tis   dull… but honest!", None)], [rng])
        assert pair is None
        assert all(space in noise for space in ("  ", "\t", "   "))
        assert "[" not in noise
        assert "##" not in noise


def test_pairs_stay_pairs_and_empty_texts_stay_empty(lm):
    rows = [("the film is dull, but honest.", "a joy from start to end!"), ("", "the old phone")]
    noise = lm.rewrite(rows, rngs(2))
    assert all(pair is not None for _, pair in noise)
    assert noise[1][0] == ""
    assert lm.rewrite([("", None)], rngs(1)) == [("", None)]
    changed = [lm.rewrite(rows[:1], [rng])[0] for rng in rngs(20)]
    assert {a for a, _ in changed} != {rows[0][0]}
    assert {b for _, b in changed} != {rows[0][1]}


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "mpnet", "albert"])
def test_logits_of_masked_words_equal_those_of_the_full_model(kind, tmp_path):
    name, shape = ENCODERS[kind]
    tokenizer = make_wordpiece()
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**shape | {"vocab_size": len(tokenizer)})
    getattr(transformers, f"{name}ForMaskedLM")(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = MaskedLm.from_pretrained(str(tmp_path))
    lm.model.eval()
    batch, words = lm.mask(ROWS[:2], rngs(2))
    places = [(word.row, token) for word in words for token in word.tokens]
    with torch.no_grad():
        for (i, t), logits in zip(places, lm.logits(batch, words), strict=True):
            ids = batch["input_ids"][i][batch["attention_mask"][i].bool()]
            expected = lm.model(input_ids=ids[None]).logits[0, t]
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
