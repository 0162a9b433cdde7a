"""Noise by a masked LM that is trained here: what it fills in, in which rounds and order, and what it leaves alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from ebmcal.data import load_texts
from ebmcal.errors import EbmcalError
from ebmcal.models.masked import HEADS, load_masked_lm
from ebmcal.noise.mlm import ORDERS, MaskedLm, Refill, masked_lm
from ebmcal.pipeline import stages
from ebmcal.progress import Reporter
from small_runs import own_rows, settings, write_csv
from tiny_models import ENCODERS, SENTENCES, make_wordpiece, save_encoder

ROWS = [(text, None) for text in SENTENCES[::3]]


@pytest.fixture(scope="module")
def lm():
    """A BERT of two layers that has learned to fill in one hidden word of `SENTENCES`."""
    torch.manual_seed(0)
    tokenizer = make_wordpiece()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model, rng = BertForMaskedLM(config), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = ~torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
    for _ in range(150):
        hide = (torch.from_numpy(rng.random(real.shape)) < 0.3) & real
        ids = batch["input_ids"].masked_fill(hide, tokenizer.mask_token_id)
        labels = batch["input_ids"].masked_fill(~hide, -100)
        loss = model(input_ids=ids, attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return MaskedLm(model, tokenizer, mask_ratio=0.3)


def generators(n, seed=0):
    return [np.random.default_rng([seed, i]) for i in range(n)]


def likelihood(lm, rows):
    """Mean log-probability of each word of the rows with that word alone hidden."""
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


def test_filled_words_are_likelier_than_others(lm):
    noise = lm.rewrite(ROWS, generators(len(ROWS)))
    assert np.mean([a != b for a, b in zip(noise, ROWS, strict=True)]) > 0.3
    words = sorted({word for text in SENTENCES for word in text.split()})
    rng = np.random.default_rng(0)
    random = [(" ".join(str(rng.choice(words)) if rng.random() < 0.3 else w for w in t.split()), None) for t, _ in ROWS]
    assert likelihood(lm, noise) > likelihood(lm, random) + 1.0


def test_rounds_let_filled_words_see_each_other(lm):
    """Most words hidden: filled one after the other they fit together better than all at once."""
    heavy = replace(lm, mask_ratio=0.8)
    at_once, in_turn = (
        likelihood(lm, replace(heavy, rounds=rounds, order="left").rewrite(ROWS, generators(len(ROWS), 1)))
        for rounds in (1, 8)
    )
    assert in_turn > at_once + 0.1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_text_depends_on_its_row_and_generator_alone(lm, order, rounds):
    lm = replace(lm, order=order, rounds=rounds)
    together = lm.rewrite(ROWS[:6], generators(6))
    assert [lm.rewrite([row], [rng])[0] for row, rng in zip(ROWS[:6], generators(6), strict=True)] == together
    assert lm.rewrite(ROWS[:6], generators(6, seed=5)) != together


def test_words_that_stay_are_kept_to_the_byte(lm):
    text = "The  FILM,\tis   dull… but honest!"
    for i in range(20):
        ((noise, pair),) = lm.rewrite([(text, None)], [np.random.default_rng(i)])
        assert pair is None
        assert noise != ""
        for between in ("  ", "\t", "   "):
            assert between in noise
        assert "[" not in noise
        assert "##" not in noise


def test_pairs_stay_pairs_and_empty_texts_stay_empty(lm):
    rows = [("the film is dull, but honest.", "a joy from start to end!"), ("", "the old phone"), ("", None)]
    noise = lm.rewrite(rows, generators(3))
    assert [pair is None for _, pair in noise] == [False, False, True]
    assert noise[1][0] == noise[2][0] == ""
    changed = [lm.rewrite(rows[:1], [np.random.default_rng(i)])[0] for i in range(20)]
    assert {a for a, _ in changed} != {rows[0][0]}
    assert {b for _, b in changed} != {rows[0][1]}


def test_the_number_of_words_of_each_round(lm, monkeypatch):
    """Ten hidden words in four rounds: 3, 3, 2, 2, and none is filled twice."""
    lm = replace(lm, mask_ratio=0.999, rounds=4, order="left")
    text, seen = "the film is worth the time the film is dull", []
    inner = MaskedLm._logits

    def counting(self, hidden, where):
        seen.append(len(where))
        return inner(self, hidden, where)

    monkeypatch.setattr(MaskedLm, "_logits", counting)
    lm.rewrite([(text, None)], generators(1))
    assert seen == [10, 7, 4, 2]


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "mpnet", "albert"])
def test_the_head_on_hidden_words_gives_the_logits_of_the_whole(kind, tmp_path):
    import transformers as hf

    name, settings = ENCODERS[kind]
    tokenizer = make_wordpiece()
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")(**settings | {"vocab_size": len(tokenizer)})
    model = getattr(hf, f"{name}ForMaskedLM")(config)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = masked_lm(str(tmp_path))
    assert (kind in HEADS) == (kind != "albert")
    hidden = [lm._hide(row, rng) for row, rng in zip(ROWS[:2], generators(2), strict=True)]
    where = [(i, t) for i, h in enumerate(hidden) for word in h.words for t in word.tokens]
    for (i, t), logits in zip(where, lm._logits(hidden, where), strict=True):
        with torch.no_grad():
            expected = lm.model(input_ids=torch.tensor(hidden[i].ids)[None]).logits[0, t]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_encoders_without_a_head_are_refused(tmp_path):
    for name in ("minilm", "mpnet"):
        with pytest.raises(EbmcalError, match=rf"{name} was made for sentence embeddings .* without its masked"):
            load_masked_lm(name)
    with pytest.raises(EbmcalError, match=r"comes without its masked-LM head \(cls\.predictions"):
        load_masked_lm(str(save_encoder(tmp_path / "encoder")))


def test_mistakes_are_named(lm):
    with pytest.raises(EbmcalError, match=r"Unknown order of filling words in 'lefft'. Did you mean 'left'"):
        replace(lm, order="lefft")


def test_the_source_rewrites_training_texts_each_by_its_own_numbers(lm, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES))
    texts, source = load_texts(path, tmp_path / "cache"), Refill(lm)
    written = [text.row for text in source.write_all(texts, generators(12))]
    again = [source.write_all(texts, [rng])[0].row for rng in generators(12)]
    assert written == again
    assert sum(row in texts.texts() for row in written) < 12
    assert all(len(row[0].split()) in {len(t.split()) for t in SENTENCES} for row in written)


def test_a_run_with_the_noise_of_a_masked_lm(lm, encoder_folder, tmp_path, monkeypatch):
    lm.model.save_pretrained(tmp_path / "lm")
    lm.tokenizer.save_pretrained(tmp_path / "lm")
    monkeypatch.setattr("ebmcal.pipeline.run_noise.HELD_OUT", 20)
    monkeypatch.setattr(stages, "write_report", lambda root: root)
    rows = write_csv(tmp_path / "moods.csv", own_rows())
    given = {"noise": f"mlm:{tmp_path / 'lm'} 0.5, splice", "methods": ["hidden"], "steps": 2, "mlm_rounds": 2}
    folder = stages.run(settings(rows, encoder_folder, tmp_path, **given), Reporter())
    assert set(stages.read_document(folder)["noise"]) == {f"mlm:{tmp_path / 'lm'}", "splice"}
    with pytest.raises(EbmcalError, match="without its masked-LM head"):
        stages.run(settings(rows, encoder_folder, tmp_path / "b", noise=f"mlm:{encoder_folder}"), Reporter())
