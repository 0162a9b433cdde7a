"""The cache that runs share: read-only ones are used, what killed processes left is swept."""

import pytest

from ebmcal.config import RunConfig
from ebmcal.noise.store import RECORD
from ebmcal.pipeline import cache
from ebmcal.storage.atomic import write_text
from ebmcal.storage.locks import locked
from ebmcal.storage.sealing import writing_folder


@pytest.fixture
def shared(tmp_path):
    """A cache with one token table and one file of texts."""
    folder = tmp_path / "shared"
    write_text(folder / "texts-0.arrow", "texts")
    with writing_folder(folder / "tokens" / "0") as aside:
        (aside / "ids.npy").write_text("tokens")
    write_text(folder / "noise" / "0" / RECORD, "one line\n")
    write_text(folder / "noise" / "0" / "shard-00000.parquet", "noise")
    (folder / "noise" / "0.lock").mkdir()
    return folder


def test_a_read_only_cache_is_read_and_never_written(shared, tmp_path, monkeypatch):
    config = RunConfig(output=tmp_path / "run", cache_dir=shared)
    assert cache.cache_of(config) == shared
    monkeypatch.setattr(cache, "can_write", lambda folder: False)
    before = sorted(shared.rglob("*"))
    own = cache.cache_of(config)
    assert own == tmp_path / "run" / "cache"
    assert (own / "texts-0.arrow").read_text() == "texts"
    assert (own / "tokens" / "0" / "ids.npy").read_text() == "tokens"
    with open(own / "noise" / "0" / RECORD, "a") as record:  # a store may grow
        record.write("another\n")
    write_text(own / "noise" / "0" / "shard-00001.parquet", "more noise")
    assert (own / "noise" / "0" / "shard-00000.parquet").read_text() == "noise"
    assert (shared / "noise" / "0" / RECORD).read_text() == "one line\n"
    with writing_folder(own / "tokens" / "1"):
        pass
    with writing_folder(own / "tokens" / "0") as aside:  # it was damaged: made again here
        (aside / "ids.npy").write_text("other tokens")
    assert cache.cache_of(config) == own
    assert (own / "tokens" / "0" / "ids.npy").read_text() == "other tokens"
    assert (shared / "tokens" / "0" / "ids.npy").read_text() == "tokens"
    assert sorted(shared.rglob("*")) == before


def test_without_a_run_folder_there_is_no_other_place(shared, monkeypatch):
    monkeypatch.setattr(cache, "can_write", lambda folder: False)
    assert cache.cache_of(RunConfig(cache_dir=shared)) == shared


def test_what_killed_processes_left_is_swept(shared):
    left = [".texts-0.json.abc.part", ".texts-9.arrow.x_1.part", "tokens/.5.xyz.part", "probes/.7.json.q.part"]
    for name in left:
        write_text(shared / name, "half")
    (shared / "tokens" / ".0.folder.part").mkdir()
    with locked(shared / "tokens" / "5.lock"):  # somebody is at it
        cache.sweep_cache(shared)
    assert [p.name for p in shared.rglob("*.part")] == [".5.xyz.part"]
    cache.sweep_cache(shared)
    assert not list(shared.rglob("*.part"))
    assert (shared / "tokens" / "0" / "ids.npy").exists()
