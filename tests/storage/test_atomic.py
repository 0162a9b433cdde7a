"""Files that are whole or absent, fingerprints and checksums."""

import hashlib
import os
import stat

import pytest

from ebmcal.errors import EbmcalError
from ebmcal.storage import atomic as files
from ebmcal.storage.atomic import (
    SEAL,
    checksum,
    damage,
    explaining_disk,
    fingerprint,
    inside,
    is_whole,
    read_json,
    reseal,
    sweep,
    write_json,
    write_text,
    writing,
    writing_folder,
)


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


def test_a_folder_is_whole_or_absent(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing_folder(tmp_path / "model") as aside:  # noqa: PT012
        (aside / "weights").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with writing_folder(tmp_path / "model") as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "weights").write_text("one")
    with writing_folder(tmp_path / "model") as aside:
        (aside / "weights").write_text("two")
    assert {p.name for p in (tmp_path / "model").rglob("*")} == {"weights", SEAL}
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("write", [writing, writing_folder])
def test_a_place_that_cannot_be_written_is_named(write, tmp_path):
    (tmp_path / "file").write_text("")
    message = r"Could not write .*file/inside.*run the same command again"
    with pytest.raises(EbmcalError, match=message), write(tmp_path / "file" / "inside"):
        pass


def test_a_full_disk_is_explained(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
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


def test_fingerprints_depend_on_content_and_not_on_key_order():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert (
        len({fingerprint("a", "b"), fingerprint("ab"), fingerprint(["a", "b"]), fingerprint(1), fingerprint("1")}) == 5
    )


@pytest.fixture
def sealed(tmp_path):
    with writing_folder(tmp_path / "model") as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "a").write_text("one")
        (aside / "b").write_text("two")
    assert damage(tmp_path / "model") == []
    return tmp_path / "model"


def test_a_seal_tells_what_changed_and_what_is_missing_and_allows_more(sealed):
    (sealed / "calibrator.json").write_text("{}")
    assert damage(sealed) == []
    (sealed / "sub" / "a").write_text("onE")
    (sealed / "b").unlink()
    assert damage(sealed) == ["b is missing", "sub/a changed"]
    lines = []
    assert not is_whole(sealed, "the model", lines.append)
    assert lines == ["the model is damaged (b is missing, sub/a changed): made again"]
    assert not is_whole(sealed / "absent", "the model", lines.append)
    assert len(lines) == 1


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"b": 1, "c": {}}', '{"../../x": "y"}', r'{"\u0000": ""}'])
def test_a_folder_whose_seal_is_damaged_is_not_whole(sealed, text):
    (sealed / SEAL).unlink() if text is None else (sealed / SEAL).write_text(text)
    assert damage(sealed)


def test_a_change_that_was_meant_is_entered(sealed):
    (sealed / "b").write_text("three")
    reseal(sealed / "b")
    (sealed / "c").write_text("new")
    reseal(sealed / "c")
    assert damage(sealed) == []
    (sealed / "c").write_text("newer")
    assert damage(sealed) == ["c changed"]
    (sealed / SEAL).write_text((sealed / SEAL).read_text().replace('"b"', '"d"'))  # a name that was altered
    assert damage(sealed) == ["d is missing", "c changed"]
    reseal(sealed / "c")
    assert damage(sealed) == []
    for text in ("[1]", "1", '"ab"', "{"):  # begun anew
        (sealed / SEAL).write_text(text)
        reseal(sealed / "c")
        assert damage(sealed) == []


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


def test_checksums(tmp_path, monkeypatch):
    content = os.urandom(3 << 20)
    (tmp_path / "a").write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert checksum(tmp_path / "a") == expected
    monkeypatch.delattr(hashlib, "file_digest", raising=False)  # Python 3.10
    assert checksum(tmp_path / "a") == expected


@pytest.mark.parametrize(
    "words", ["I/O error: No space left on device (os error 28)", "PytorchStreamWriter failed writing"]
)
def test_a_full_disk_is_told_whoever_writes(tmp_path, words):
    told = pytest.raises(EbmcalError, match=r"Could not write .*model: No space left on device")
    with told, explaining_disk(tmp_path / "model"):
        raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="something else"), explaining_disk(tmp_path):
        raise RuntimeError("something else")
