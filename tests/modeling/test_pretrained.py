"""Loading encoders: built in, from directories, with the right pooling; errors."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from ebmcal.errors import EbmcalError
from ebmcal.modeling.mean_pooling import MeanPoolingForSequenceClassification
from ebmcal.modeling.pretrained import (
    check_directory,
    check_encoder,
    check_language_model,
    load_encoder,
    load_language_model,
    load_masked_lm,
    load_tokenizer,
    uses_mean_pooling,
)
from tiny_models import save_encoder, save_language_model

LABELS = ("bad", "good")


def test_minilm_is_built_in_and_uses_mean_pooling():
    config = check_encoder("minilm")
    assert config.hidden_size == 384
    torch.manual_seed(0)
    model = load_encoder("minilm", LABELS)
    assert isinstance(model, MeanPoolingForSequenceClassification)
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert load_tokenizer("minilm")("a text")["input_ids"]


def test_pooling_follows_the_sentence_transformers_config(tmp_path):
    folder = save_encoder(tmp_path / "encoder")
    assert not uses_mean_pooling(str(folder))
    assert not isinstance(load_encoder(str(folder), LABELS), MeanPoolingForSequenceClassification)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    assert isinstance(load_encoder(str(folder), LABELS), MeanPoolingForSequenceClassification)
    assert not isinstance(load_encoder(str(folder), LABELS, pooling="first"), MeanPoolingForSequenceClassification)


def test_a_mean_pooling_checkpoint_loads_in_a_process_without_ebmcal(tmp_path):
    folder = save_encoder(tmp_path / "encoder")
    torch.manual_seed(0)
    model = load_encoder(str(folder), LABELS, pooling="mean").eval()
    model.save_pretrained(tmp_path / "model")
    ids = torch.tensor([[2, 5, 6, 3]])
    expected = model(ids).logits[0].tolist()
    script = f"""
import sys; sys.modules["ebmcal"] = None
import torch
from transformers import AutoModelForSequenceClassification as Auto
model = Auto.from_pretrained({str(tmp_path / "model")!r}, trust_remote_code=True).eval()
print(model(torch.tensor({ids.tolist()})).logits[0].tolist())
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minilmm", "Did you mean 'minilm'"),
        ("./nowhere", "no config.json"),
        ("some/hub-name", "not a local directory"),
    ],
)
def test_unknown_encoders(name, message):
    with pytest.raises(EbmcalError, match=message):
        check_encoder(name)


def test_incomplete_directories(tmp_path):
    folder = save_encoder(tmp_path / "encoder")
    check_directory("It", folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(EbmcalError, match="corrupt weights"):
        check_directory("It", folder)
    weights.unlink()
    with pytest.raises(EbmcalError, match="no .safetensors"):
        check_directory("It", folder)
    weights.write_bytes(content)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(EbmcalError, match="no tokenizer"):
        check_directory("It", folder)
    assert load_file(weights)


def test_language_models(tmp_path, encoder_dir):
    folder = save_language_model(tmp_path / "lm")
    assert check_language_model(str(folder)).model_type == "llama"
    model, tokenizer = load_language_model(str(folder))
    assert model.dtype == torch.float32
    assert tokenizer("a text")["input_ids"]
    with pytest.raises(EbmcalError, match="cannot generate text"):
        check_language_model(str(encoder_dir))


def test_masked_lms_need_their_head(encoder_dir):
    with pytest.raises(EbmcalError, match="without a masked-LM head"):
        load_masked_lm("minilm")
    with pytest.raises(EbmcalError, match="no masked-LM head"):
        load_masked_lm(str(encoder_dir))
