"""A model to a stand-in of the hub: everything arrives, private by default, and nothing is sent unless asked."""

import numpy as np
import pytest

pytest.importorskip("torch")

from ebmcal.calibrators import TemperatureScaling, attach
from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.sharing.push import push, sent_files
from hub_stand_in import TOKEN, playing_hub
from tiny_models import SENTENCES, save_encoder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of huggingface_hub about its own client


@pytest.fixture
def model(tmp_path):
    folder = save_encoder(tmp_path / "model")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 3))
    attach(folder, TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)))
    (folder / "notes.pkl").touch()
    (folder / "diary.md").write_text("not for others")
    return folder


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # its protocol is binary, LFS is not
    with playing_hub() as hub:
        yield hub


def test_what_arrives_is_the_model(model, hub, tmp_path):
    address = push(model, "me/films", token=TOKEN, endpoint=hub.address)
    assert address == f"{hub.address}/me/films"
    assert hub.private == {"me/films": True}
    files = hub.files["me/films"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "calibrator.json", "README.md"} <= set(files)
    assert not {"notes.pkl", "diary.md"} & set(files)
    assert files["README.md"].decode().startswith("---\nlibrary_name: transformers\n")
    (tmp_path / "fetched").mkdir()
    for name, content in files.items():
        (tmp_path / "fetched" / name).write_bytes(content)
    np.testing.assert_array_equal(
        load(tmp_path / "fetched").predict_proba(SENTENCES[:5]), load(model).predict_proba(SENTENCES[:5])
    )
    push(model, "me/open", private=False, token=TOKEN, endpoint=hub.address)
    assert hub.private["me/open"] is False


def test_what_is_refused(model, hub):
    with pytest.raises(EbmcalError, match=r"could not be sent to the hub.*hf auth login"):
        push(model, "me/films", token="hf_wrong", endpoint=hub.address)
    assert not hub.files
    hub.asked.clear()
    for name in ("films", "me/films/two", "me/a film"):
        with pytest.raises(EbmcalError, match="USER/NAME"):
            push(model, name, token=TOKEN, endpoint=hub.address)
    with pytest.raises(EbmcalError, match=r"no config\.json"):
        push(model.parent, "me/films", token=TOKEN, endpoint=hub.address)
    assert not hub.asked


def test_a_dry_run_sends_nothing(model, hub, monkeypatch, capsys):
    from ebmcal.cli import main

    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    with pytest.raises(SystemExit, match="0"):
        main(["push", str(model), "me/films", "--dry-run"])
    said = capsys.readouterr().out
    assert "model.safetensors" in said
    assert "README.md, the model card, which is written first" in said
    for name in ("films", "me/films/two", "me/a film", "me/fi--lms", "me/.films", "me/films-"):
        with pytest.raises(SystemExit, match="1"):
            main(["push", str(model), name, "--dry-run"])
        assert "USER/NAME" in capsys.readouterr().err
    assert not hub.asked
    assert not (model / "README.md").exists()
    (model / "ebmcal.json").write_text('{"energy": "sngp"}')
    with pytest.raises(SystemExit, match="1"):
        main(["push", str(model), "me/films", "--dry-run"])
    assert "Gaussian process" in capsys.readouterr().err
    (model / "ebmcal.json").unlink()
    assert [path.name for path in sent_files(model)] == sorted(path.name for path in sent_files(model))
