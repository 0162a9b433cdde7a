"""The masked-LM head that stays beside a classifier in training."""

import json

import numpy as np
import pytest
import torch
import transformers as hf

from ebmcal.config import load_config
from ebmcal.errors import EbmcalError
from ebmcal.models.masked import HEADS, MaskedHead
from ebmcal.models.packing import Pack, pack, pad, use_packing
from ebmcal.pipeline import stages
from ebmcal.progress import Reporter
from ebmcal.runfolder import Cell
from small_runs import own_rows, settings, write_csv
from tiny_models import ENCODERS, SENTENCES, make_wordpiece


def masked_lm(kind):
    name, settings = ENCODERS[kind]
    tokenizer = make_wordpiece()
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")(**settings | {"vocab_size": len(tokenizer)})
    return getattr(hf, f"{name}ForMaskedLM")(config).eval(), tokenizer


def some_texts(tokenizer) -> Pack:
    return pack(sorted((np.array(tokenizer(text)["input_ids"]) for text in SENTENCES[:8]), key=len))


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "mpnet"])
def test_losses_are_those_of_the_stock_model(kind):
    """The mean over the masked tokens of each text; a text without one has none."""
    model, tokenizer = masked_lm(kind)
    batch, head = some_texts(tokenizer), MaskedHead(model, tokenizer)
    torch.manual_seed(3)
    drawn = torch.rand(batch.input_ids.shape) < 0.15
    masked = drawn & ~torch.isin(batch.input_ids, torch.tensor(tokenizer.all_special_ids))
    hidden = Pack(torch.where(masked, tokenizer.mask_token_id, batch.input_ids), batch.token_types, batch.lengths)
    ids, mask, _ = pad(hidden, tokenizer.pad_token_id)
    labels = torch.full_like(ids, -100)
    labels[mask.bool()] = torch.where(masked, batch.input_ids, -100)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
        expected = [torch.nn.functional.cross_entropy(a, b) if (b >= 0).any() else torch.tensor(0.0)
                    for a, b in zip(logits, labels, strict=True)]  # fmt: skip
        use_packing(model)
        torch.manual_seed(3)
        found = head.losses(model, batch)
    assert masked.any()
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)


def test_the_head_is_a_copy_and_learns_with_the_encoder():
    model, tokenizer = masked_lm("bert")
    batch, head = some_texts(tokenizer), MaskedHead(model, tokenizer)
    use_packing(model)
    head.losses(model, batch).sum().backward()
    assert model.bert.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    assert head.cls.predictions.decoder.weight.grad.abs().sum() > 0
    assert head.cls.predictions.decoder.weight is not model.cls.predictions.decoder.weight


def test_architectures_without_a_known_head_are_refused():
    model, tokenizer = masked_lm("albert")
    with pytest.raises(EbmcalError, match=rf"mlm-aux knows the masked-LM heads of {', '.join(HEADS)}; .* 'albert'"):
        MaskedHead(model, tokenizer)


def test_a_run_with_masked_words_beside_the_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "write_report", lambda root: root)
    model, tokenizer = masked_lm("bert")
    model.save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    rows = write_csv(tmp_path / "moods.csv", own_rows())
    given = {"methods": ["mlm-aux"], "steps": 3, "mlm_weight": 0.5}
    folder = stages.run(settings(rows, tmp_path / "lm", tmp_path, **given), Reporter())
    cell = Cell("mlm-aux", 1)
    history = [json.loads(line) for line in folder.history(cell).read_text().splitlines()]
    assert sum("masked_term" in line for line in history) == 3
    assert not [p.name for p in folder.model(cell).iterdir() if "masked" in p.name]
    assert hf.AutoModelForSequenceClassification.from_pretrained(folder.model(cell)).num_labels > 1


def test_an_encoder_without_its_head_is_refused_before_work(tmp_path):
    rows = write_csv(tmp_path / "moods.csv", own_rows())
    given = {"train": str(rows), "encoder": "minilm", "methods": ["mlm-aux"], "output": str(tmp_path / "run")}
    with pytest.raises(EbmcalError, match="minilm was made for sentence embeddings and comes without its masked-LM"):
        stages.prepare(load_config(None, given), Reporter())
