"""Folders that are whole or absent, and what tells later damage."""

import pytest

from ebmcal.storage.sealing import SEAL, admit, damage, is_whole, reseal, writing_folder


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


def test_a_file_that_is_replaced_is_whole_before_and_after(tmp_path):
    """Killed after the file took its place, or before: the folder is whole, and another file still is not."""
    with writing_folder(tmp_path / "model") as aside:
        (aside / "weights").write_text("old")
    path, coming = tmp_path / "model" / "weights", tmp_path / "coming"
    coming.write_text("new")
    admit(path, coming)
    assert not damage(path.parent)
    coming.replace(path)
    assert not damage(path.parent)
    reseal(path)
    assert not damage(path.parent)
    path.write_text("old")
    assert damage(path.parent) == ["weights changed"]
