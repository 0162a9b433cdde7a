"""Whose a run folder is: folders of other versions are named as such."""

import pytest
import yaml

from ebmcal.config import RunConfig, save_config
from ebmcal.errors import EbmcalError
from ebmcal.pipeline.ownership import check_place
from ebmcal.runfolder import RunFolder
from ebmcal.storage.atomic import write_json, write_text


def folder_with(tmp_path, version=None, **changes):
    folder = RunFolder(tmp_path / "run")
    write_text(folder.config, yaml.safe_dump(yaml.safe_load(save_config(RunConfig())) | changes))
    if version:
        write_json(folder.metrics, {"versions": {"ebmcal": version}})
    return folder


def test_a_folder_of_another_version_is_refused_with_it(tmp_path):
    with pytest.raises(
        EbmcalError, match=r"made by ebmcal 0\.0\.9; this is .*Unknown setting 'warp'.*Use that version"
    ):
        check_place(folder_with(tmp_path, "0.0.9", warp=3))


def test_values_of_another_version_are_named(tmp_path):
    with pytest.raises(EbmcalError, match=r"made by ebmcal of another version; .*Unknown method 'tiny'"):
        check_place(folder_with(tmp_path, methods=["tiny"]))


def test_a_place_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch):
    monkeypatch.setattr("ebmcal.pipeline.ownership.can_write", lambda folder: False)
    with pytest.raises(EbmcalError, match=r"Could not write in .*run: no permission. Choose another --output"):
        check_place(RunFolder(tmp_path / "run"))


def test_something_else_is_no_run_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    write_text(folder.config, "services: {}\n")
    with pytest.raises(EbmcalError, match="is no run folder"):
        check_place(folder)
