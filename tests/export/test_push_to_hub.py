"""Models on a fake hub: complete, private by default, and nothing is sent unless requested."""

import shutil

import numpy as np
import pytest

pytest.importorskip("torch")

from fake_hub import TOKEN, fake_hub

import ebmcal
from ebmcal import EbmcalError, TemperatureScaling, push_to_hub
from ebmcal.calibration import save_calibrator
from ebmcal.export import files_to_push
from ebmcal.run_dir import RunDir, Trial
from ebmcal.storage import write_json
from tiny_models import SENTENCES, save_encoder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of huggingface_hub about its own client


@pytest.fixture
def model(tmp_path):
    folder = save_encoder(tmp_path / "model")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 3))
    calibrator = TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1))
    save_calibrator(folder, calibrator)
    for name in ("notes.pkl", "diary.md", "secret.py"):
        (folder / name).write_text("not for others")
    return folder


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the fake hub speaks LFS
    with fake_hub() as hub:
        yield hub


def test_the_model_arrives(model, hub, tmp_path):
    address = push_to_hub(model, "me/films", token=TOKEN, endpoint=hub.address)
    assert address == f"{hub.address}/me/films"
    assert hub.private == {"me/films": True}
    files = hub.files["me/films"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "ebmcal.json", "README.md"} <= set(files)
    assert not {"notes.pkl", "diary.md", "secret.py"} & set(files)
    assert files["README.md"].decode().startswith("---\n")
    (tmp_path / "fetched").mkdir()
    for name, content in files.items():
        (tmp_path / "fetched" / name).write_bytes(content)
    fetched = ebmcal.load(tmp_path / "fetched").predict_proba(SENTENCES[:5])
    np.testing.assert_array_equal(fetched, ebmcal.load(model).predict_proba(SENTENCES[:5]))
    push_to_hub(model, "me/open", private=False, token=TOKEN, endpoint=hub.address)
    assert hub.private["me/open"] is False


def test_what_is_refused(model, hub):
    with pytest.raises(EbmcalError, match=r"could not be pushed to the hub.*hf auth login"):
        push_to_hub(model, "me/films", token="hf_wrong", endpoint=hub.address)
    assert not hub.files
    hub.requests.clear()
    for name in ("films", "me/films/two", "me/a film", "me/fi--lms", "me/.films", "me/films-"):
        with pytest.raises(EbmcalError, match="USER/NAME"):
            push_to_hub(model, name, token=TOKEN, endpoint=hub.address)
    with pytest.raises(EbmcalError, match=r"no config\.json"):
        push_to_hub(model.parent, "me/films", token=TOKEN, endpoint=hub.address)
    assert not hub.requests


def test_a_dry_run_sends_nothing(model, hub, monkeypatch, command):
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    out = command("push", model, "me/films", "--dry-run")
    assert "model.safetensors" in out
    assert "README.md (model card, written first)" in out
    assert "USER/NAME" in command("push", model, "films", "--dry-run", code=1)
    assert not hub.requests
    assert not (model / "README.md").exists()


def test_of_a_run_the_recommended_model_is_pushed(model, tmp_path, command):
    run, trial = RunDir(tmp_path / "run"), Trial("hidden", 1)
    shutil.copytree(model, run.model(trial))
    run.config.touch()
    with pytest.raises(EbmcalError, match="no recommended model yet"):
        push_to_hub(run.root, "me/films")
    write_json(run.results, {"recommended": {"trial": trial.name, "calibrator": "temperature"}})
    assert {path.parent for path in files_to_push(run.root)} == {run.model(trial)}
    assert "ebmcal.json" in command("push", run.root, "me/films", "--dry-run")


def test_code_that_the_checkpoint_needs_is_sent(model):
    config = (model / "config.json").read_text()
    (model / "config.json").write_text('{"auto_map": {"AutoConfig": "secret.Config"},' + config.lstrip()[1:])
    assert "secret.py" in {path.name for path in files_to_push(model)}


@pytest.mark.parametrize("energy", ["sngp", "laplace"])
def test_models_that_transformers_would_predict_otherwise_are_refused(model, energy):
    (model / "ebmcal.json").write_text(f'{{"energy": "{energy}"}}')
    with pytest.raises(EbmcalError, match="transformers would give other probabilities"):
        files_to_push(model)
