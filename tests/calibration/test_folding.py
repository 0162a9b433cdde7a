"""Temperature folded into real, tiny transformers models: their own logits come out divided by T."""

import numpy as np
import pytest

from ebmcal import EbmcalError
from ebmcal.calibration import TemperatureScaling, folded_temperature, read_calibrator, save_calibrator
from ebmcal.run_dir import read_card

torch = pytest.importorskip("torch", reason="folding is tested with real models")
transformers = pytest.importorskip("transformers", reason="folding is tested with real models")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 40,
    "num_labels": 3,
}
MODELS = {
    "bert": "classifier",
    "roberta": "classifier.out_proj",
    "electra": "classifier.out_proj",
    "mpnet": "classifier.out_proj",
    "distilbert": "classifier",
    "gpt2": "score",
}


def tiny_model(kind):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES, pad_token_id=0)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def logits_of(model):
    torch.manual_seed(1)
    ids = torch.randint(2, 50, (4, 10))
    with torch.no_grad():
        return model(ids).logits.double().numpy()


def load(folder, **options):
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, **options).eval()


def fold(folder, calibrator):
    return save_calibrator(folder, calibrator, fold=True)


@pytest.fixture
def fitted(calibrated_rows):
    logits, y = calibrated_rows(2000, 3)
    return TemperatureScaling().fit(2.5 * logits, y)


@pytest.mark.parametrize("kind", MODELS)
def test_plain_transformers_gives_calibrated_probabilities(kind, tmp_path, fitted):
    model = tiny_model(kind)
    torch.nn.init.normal_(next(p for n, p in model.named_parameters() if n.endswith(f"{MODELS[kind]}.weight")))
    before = logits_of(model)
    model.save_pretrained(tmp_path)
    names = fold(tmp_path, fitted)
    assert [n.rpartition(".")[0] for n in names] == [MODELS[kind]] * len(names)
    after = logits_of(load(tmp_path))
    np.testing.assert_allclose(after, before / fitted.temperature_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        torch.tensor(after).softmax(-1).numpy(), fitted.predict_proba(before), rtol=1e-5, atol=1e-6
    )


def test_every_other_tensor_stays_to_the_bit(tmp_path, fitted):
    model = tiny_model("bert")
    model.save_pretrained(tmp_path)
    names = fold(tmp_path, fitted)
    folded = load(tmp_path).state_dict()
    for name, tensor in model.state_dict().items():
        expected = (tensor.double() / fitted.temperature_).float() if name in names else tensor
        assert torch.equal(folded[name], expected), name


def test_folding_twice_is_refused_and_changes_nothing(tmp_path, fitted):
    tiny_model("bert").save_pretrained(tmp_path)
    fold(tmp_path, fitted)
    once = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(EbmcalError, match="already folded"):
        fold(tmp_path, fitted)
    assert (tmp_path / "model.safetensors").read_bytes() == once
    assert folded_temperature(tmp_path) == fitted.temperature_


def test_after_folding_nothing_is_left_to_apply(tmp_path, fitted):
    tiny_model("bert").save_pretrained(tmp_path)
    save_calibrator(tmp_path, fitted)
    fold(tmp_path, fitted)
    assert read_calibrator(tmp_path) is None
    assert read_card(tmp_path)["folded_temperature"] == fitted.temperature_
    save_calibrator(tmp_path, fitted)  # fitted on the logits of the folded model
    assert read_calibrator(tmp_path) is not None


def test_a_process_that_dies_while_folding_never_leaves_a_temperature_applied_twice(tmp_path, fitted, monkeypatch):
    tiny_model("bert").save_pretrained(tmp_path)
    save_calibrator(tmp_path, fitted)

    def die(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("ebmcal.calibration.persistence.fold_temperature", die)
    with pytest.raises(KeyboardInterrupt):
        fold(tmp_path, fitted)
    assert (read_calibrator(tmp_path), folded_temperature(tmp_path)) == (None, None)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype, tmp_path, fitted):
    model = tiny_model("roberta").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    before = model.classifier.out_proj.weight.detach().double()
    fold(tmp_path, fitted)
    after = load(tmp_path, dtype=getattr(torch, dtype)).classifier.out_proj.weight.detach()
    assert torch.equal(after, (before / fitted.temperature_).to(getattr(torch, dtype)))


def test_sharded_models(tmp_path, fitted):
    model = tiny_model("bert")
    before = logits_of(model)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    fold(tmp_path, fitted)
    np.testing.assert_allclose(logits_of(load(tmp_path)), before / fitted.temperature_, rtol=1e-5, atol=1e-6)
    assert folded_temperature(tmp_path) == fitted.temperature_


@pytest.mark.parametrize("length", [0, 5, 500, -10])
def test_a_truncated_file_is_refused(length, tmp_path, fitted):
    tiny_model("bert").save_pretrained(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:length])
    with pytest.raises(EbmcalError, match="safetensors"):
        fold(tmp_path, fitted)


def test_a_model_that_cannot_be_folded_is_refused(tmp_path, fitted, calibrated_rows):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EbmcalError, match=r"no model\.safetensors"):
        fold(tmp_path, fitted)
    tiny_model("bert").base_model.save_pretrained(tmp_path)
    with pytest.raises(EbmcalError, match="No last layer found"):
        fold(tmp_path, fitted)
    tiny_model("bert").save_pretrained(tmp_path)
    with pytest.raises(EbmcalError, match="2 classes"):
        fold(tmp_path, TemperatureScaling().fit(*calibrated_rows(500, 2)))
