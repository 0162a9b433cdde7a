"""Experiment trackers: what is refused, what is really written, and that each training has a report of its own."""

import sys
from types import SimpleNamespace

import pytest

from ebmcal.config import fixed_settings, load_config
from ebmcal.errors import EbmcalError
from ebmcal.pipeline.stages import train_only
from ebmcal.progress import Reporter
from ebmcal.training.trackers import check_trackers, close_trackers
from small_runs import make_small, own_rows, settings, write_csv


def read_scalars(folder):
    """Tag -> values of the TensorBoard events below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_unknown_and_missing_trackers_are_refused():
    with pytest.raises(EbmcalError, match=r"Unknown experiment tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        check_trackers(["tensorbord"])
    with pytest.raises(EbmcalError, match=r"experiment tracker dvclive cannot be used: .*pip install dvclive"):
        check_trackers(["tensorboard", "dvclive"])
    check_trackers([])


def test_a_run_refuses_them_before_it_writes_anything(encoder_folder, tmp_path):
    files = write_csv(tmp_path / "moods.csv", own_rows())
    with pytest.raises(EbmcalError, match="Unknown experiment tracker 'w&b'"):
        train_only(settings(files, encoder_folder, tmp_path, report_to=["w&b"]), Reporter())
    assert not (tmp_path / "run").exists()


def test_trackers_are_no_part_of_what_a_run_is():
    assert fixed_settings(load_config(None, {"report_to": ["wandb"]})) == fixed_settings(load_config(None, {}))


def test_each_model_of_a_run_has_its_events(encoder_folder, tmp_path, monkeypatch):
    make_small(monkeypatch)
    files = write_csv(tmp_path / "moods.csv", own_rows())
    train_only(settings(files, encoder_folder, tmp_path, report_to=["tensorboard"]), Reporter())
    for method, terms in (("baseline", {"cross_entropy"}), ("hidden", {"data_term", "noise_term", "noise_accuracy"})):
        scalars = read_scalars(tmp_path / "run" / "checkpoints" / f"{method}-seed1" / "runs")
        assert scalars.keys() >= {"train/loss", "eval/ece_classwise", *(f"train/{term}" for term in terms)}
        assert len(scalars["train/loss"]) == 6


def test_reports_that_the_trainer_leaves_open_are_ended(monkeypatch):
    ended = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(finish=lambda: ended.append("wandb")))
    close_trackers(["tensorboard", "wandb"])
    assert ended == ["wandb"]
