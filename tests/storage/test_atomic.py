"""Files that are whole or absent, and what is said when the disk does not let them be written."""

import os
import stat

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.storage import atomic
from ebmcal.storage.atomic import explaining_disk, inside, read_json, sweep, write_json, write_text, writing
from ebmcal.storage.sealing import writing_folder


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), writing(tmp_path / "a.txt") as aside:  # noqa: PT012
        aside.write_text("half")
        raise RuntimeError
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with writing(tmp_path / "a.txt") as aside:
        aside.write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
        assert aside.parent == tmp_path  # the same disk, so that the rename is atomic
    assert (tmp_path / "a.txt").read_text() == "new"


def test_folders_on_the_way_are_made_and_modes_are_usual(tmp_path):
    write_text(tmp_path / "x" / "y" / "a.txt", "ä")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "x" / "y" / "a.txt").stat().st_mode) == 0o666 & ~mask
    assert (tmp_path / "x" / "y" / "a.txt").read_bytes() == "ä".encode()


@pytest.mark.parametrize("write", [writing, writing_folder])
def test_a_place_that_cannot_be_written_is_named(write, tmp_path):
    (tmp_path / "file").write_text("")
    message = r"Could not write .*file/inside.*run the same command again"
    with pytest.raises(EbmcalError, match=message), write(tmp_path / "file" / "inside"):
        pass


def test_a_full_disk_is_explained(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(EbmcalError, match=r"a\.txt: No space left on device. What was finished before is kept"):
        write_text(tmp_path / "a.txt", "text")
    assert list(tmp_path.iterdir()) == []


def test_json_round_trip_and_damage(tmp_path):
    value = {"b": [1, 2.5, None], "a": "ü"}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert list(read_json(tmp_path / "a.json")) == ["b", "a"]
    (tmp_path / "a.json").write_text('{"b": [1,')
    with pytest.raises(EbmcalError, match=r"a\.json is not readable JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xff")
    with pytest.raises(EbmcalError, match="not readable JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(EbmcalError, match=r"b\.json does not exist"):
        read_json(tmp_path / "b.json")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))


def test_json_with_a_checksum_cannot_be_altered_unseen(tmp_path):
    path, value = tmp_path / "a.json", {"rows": 12, "names": ["ä"]}
    write_json(path, value, checked=True)
    assert read_json(path) == value
    path.write_text(path.read_text().replace("12", "13"))
    with pytest.raises(EbmcalError, match=r"a.json is damaged"):
        read_json(path)


def test_names_from_files_stay_inside_their_folder(tmp_path):
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    for name in ("../x", "a/../../x", "/etc/passwd", "link/x"):
        with pytest.raises(EbmcalError, match="leaves the folder"):
            inside(tmp_path / "run", name)


def test_what_a_killed_process_left_is_swept(tmp_path):
    (tmp_path / "sub" / ".model.x.part").mkdir(parents=True)
    (tmp_path / "sub" / ".model.x.part" / "weights").write_text("half")
    (tmp_path / ".a.json.y.part").write_text("half")
    (tmp_path / "a.part").write_text("of the user")
    sweep(tmp_path)
    assert {p.name for p in tmp_path.rglob("*")} == {"sub", "a.part"}


@pytest.mark.parametrize(
    "words", ["I/O error: No space left on device (os error 28)", "PytorchStreamWriter failed writing"]
)
def test_a_full_disk_is_told_whoever_writes(tmp_path, words):
    told = pytest.raises(EbmcalError, match=r"Could not write .*model: No space left on device")
    with told, explaining_disk(tmp_path / "model"):
        raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="something else"), explaining_disk(tmp_path):
        raise RuntimeError("something else")
