"""Whatever is cut, altered or deleted in a run folder or in the cache is found at the next start and named; that part
alone is made again, to the bit."""

import hashlib
import shutil
from functools import partial

import numpy as np
import pytest
import yaml

from ebmcal.calibrators import TemperatureScaling, attach
from ebmcal.calibrators.in_model import attach_folded
from ebmcal.errors import EbmcalError
from ebmcal.judging import Measures, judge_run
from ebmcal.model import load
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.pipeline import stages as pipeline
from ebmcal.pipeline.stages import run, train_only
from ebmcal.progress import Reporter
from ebmcal.report import write_report
from ebmcal.runfolder import Cell, RunFolder
from ebmcal.storage.locks import LOCK
from ebmcal.storage.sealing import SEAL, damage
from small_runs import Lines, make_small, own_rows, settings, write_csv

HIDDEN = Cell("hidden", 1)


@pytest.fixture(scope="module", autouse=True)
def small_and_quick():
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        patch.setattr(pipeline, "write_report", lambda root: (root / "report.html").write_text("report"))
        patch.setattr(pipeline, "judge_run", partial(judge_run, how=Measures(n_resamples=5)))
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_csv(tmp_path_factory.mktemp("own") / "moods.csv", own_rows())


@pytest.fixture(scope="module")
def finished(files, encoder_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    run(settings(files, encoder_folder, folder, methods=["hidden"], posthoc=[]), Reporter())
    return folder


@pytest.fixture
def place(finished, tmp_path):
    """A finished run and its cache, to be damaged."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def again(files, encoder_folder, place, start=run):
    lines = Lines()
    start(settings(files, encoder_folder, place, methods=["hidden"], posthoc=[]), lines)
    return lines.lines


def contents(place):
    """Name → digest. The times that a training took are the only thing that may differ."""
    aside = {LOCK, "log.txt", SEAL, "noise_lm.json", "ebmcal.json", "metrics.json", "config.yaml"}
    found = [p for p in place.rglob("*") if p.is_file() and p.name not in aside]
    return {p.relative_to(place).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def times(place):
    return {p: p.stat().st_mtime_ns for p in place.rglob("*") if p.is_file() and p.name != LOCK}


def spoil(path, how):
    content = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


#: Which file, how, what is said of it, and where (below run/ or cache/) something may be written again.
PARTS = [
    ("run/checkpoints/*/model/model.safetensors", "flipped", "model is damaged (model.safetensors changed)", "model/"),
    ("run/checkpoints/*/model/tokenizer.json", "deleted", "(tokenizer.json is missing)", "model/"),
    ("run/checkpoints/*/model/checksums.json", "cut", "(checksums.json is missing or unreadable)", "model/"),
    ("run/predictions/*/test.parquet", "flipped", "test.parquet is damaged", "predictions/"),
    ("run/predictions/*/test.parquet", "deleted", "test.parquet is missing", "predictions/"),
    ("run/predictions/*/checksums.json", "cut", "test.parquet is damaged", "predictions/"),
    ("run/history/*.jsonl", "deleted", "hidden-seed1.jsonl is missing or damaged", "history/"),
    ("run/config.yaml", "deleted", "config.yaml is lost", ""),
    ("run/config.yaml", "flipped", "config.yaml", ""),
    ("run/fingerprints.json", "cut", "fingerprints.json is lost or damaged", ""),
    ("run/metrics.json", "flipped", "metrics.json changed", ""),
    ("run/report.html", "deleted", "report.html is missing", ""),
    ("run/noise_examples.json", "cut", "noise_examples.json changed", ""),
    ("cache/noise_lm/*/model.safetensors", "flipped", "(model.safetensors changed)", "cache/noise_lm/"),
    ("cache/noise_lm/*/noise_lm.json", "deleted", "(noise_lm.json is missing)", "cache/noise_lm/"),
    ("cache/noise/*/shard-00000.parquet", "flipped", "shard-00000.parquet", "cache/noise/"),
    ("cache/noise/*/noise.jsonl", "cut", "noise.jsonl", "cache/noise/*/noise.jsonl"),
    ("cache/noise/*/noise.jsonl", "deleted", "whole shards were not listed", "cache/noise/*/noise.jsonl"),
    ("cache/tokens/*/ids.npy", "flipped", "(ids.npy changed)", "cache/tokens/"),
    ("cache/probes/*.json", "flipped", "is told from data", "cache/probes/"),
    ("cache/probes/*.json", "cut", "is told from data", "cache/probes/"),
    ("cache/texts-*.arrow", "cut", "is lost or damaged: made again", "cache/texts-"),
    ("cache/texts-*.arrow", "deleted", "is lost or damaged: made again", "cache/texts-"),
]


@pytest.mark.parametrize(("pattern", "how", "said", "redone"), PARTS, ids=[f"{p[1]} {p[0]}" for p in PARTS])
def test_a_damaged_part_is_named_and_made_again_alone(pattern, how, said, redone, place, files, encoder_folder):
    expected, before = contents(place), times(place)
    victim = sorted(place.glob(pattern))[0]
    spoil(victim, how)
    lines = again(files, encoder_folder, place)
    assert contents(place) == expected
    assert any(said in line for line in lines)
    always = {place / "run" / p for p in ("config.yaml", "fingerprints.json", "metrics.json", "report.html", SEAL)}
    always.add(place / "run" / "noise_examples.json")
    written = {p for p, time in times(place).items() if before.get(p) != time} - always - {victim}
    part = redone.split("*")[0]
    assert all(part and part in p.as_posix() for p in written), written
    assert damage(place / "run") == []
    if pattern.startswith("cache"):  # nothing vouches for these but the next call
        assert not [line for line in again(files, encoder_folder, place) if "damaged" in line or "lost" in line]


def test_a_damaged_shard_list_keeps_the_shards(place, files, encoder_folder):
    shards = {p: p.stat().st_mtime_ns for p in place.rglob("shard-*")}
    next(place.rglob("noise.jsonl")).unlink()
    again(files, encoder_folder, place)
    assert shards == {p: p.stat().st_mtime_ns for p in place.rglob("shard-*")}


def test_train_alone_mends_the_model(place, files, encoder_folder):
    model = RunFolder(place / "run").model(HIDDEN)
    whole = (model / "model.safetensors").read_bytes()
    spoil(model / "model.safetensors", "cut")
    assert any("model.safetensors changed" in line for line in again(files, encoder_folder, place, train_only))
    assert (model / "model.safetensors").read_bytes() == whole


def test_a_folder_that_lost_config_and_fingerprints_is_not_taken_over(place, files, encoder_folder):
    for name in ("config.yaml", "fingerprints.json"):
        (place / "run" / name).unlink()
    with pytest.raises(EbmcalError, match=r"no whole config\.yaml or fingerprints\.json"):
        again(files, encoder_folder, place)


def test_other_data_are_found_out_without_the_fingerprints(place, encoder_folder):
    """The card of a trained model says what it was trained on."""
    (place / "run" / "fingerprints.json").unlink()
    rows = own_rows()
    changed = write_csv(place / "moods.csv", [("another text altogether", rows[0][1]), *rows[1:]])
    with pytest.raises(EbmcalError, match=r"The texts or labels of .* have changed"):
        again(changed, encoder_folder, place)


def test_a_config_that_was_edited_is_no_damage(place, files, encoder_folder):
    """The settings of the command are compared with what the folder was begun with."""
    path = place / "run" / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"steps": 7}))
    with pytest.raises(EbmcalError, match="steps: there 7, now 8"):
        run(settings(files, encoder_folder, place, methods=["hidden"], posthoc=[], steps=8), Reporter())


def fitted():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 5))
    return TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


def test_predict_names_the_damaged_file_and_takes_what_calibrate_does(place, files):
    model = RunFolder(place / "run").model(HIDDEN)
    load(model).predict(files)
    attach(model, fitted())
    assert load(model).predict(files).meta["calibrator"]
    attach_folded(model, fitted())
    assert load(model).predict(files).meta["folded_temperature"]
    assert damage(model) == []
    spoil(model / "model.safetensors", "flipped")
    said = r"damaged: model.safetensors changed\. The same `ebmcal run` trains it again"
    with pytest.raises(EbmcalError, match=said):
        load(model).predict(files)
    (model / SEAL).unlink()  # "if you changed it yourself"
    load(model).predict(files)


def test_a_calibrator_outlives_the_model_it_is_kept_with(place, files, encoder_folder):
    model = RunFolder(place / "run").model(HIDDEN)
    attach(model, fitted())
    kept = (model / "calibrator.json").read_bytes()
    attach_folded(model, fitted())
    attach(model, fitted())
    spoil(model / "config.json", "deleted")
    assert any("fold it again" in line for line in again(files, encoder_folder, place))
    assert (model / "calibrator.json").exists()
    assert not (model / "calibrator_folded.json").exists()
    assert kept
    EnergyClassifier.from_pretrained(model)


def test_predictions_are_not_made_again_by_a_folded_model(place, files, encoder_folder):
    folder = RunFolder(place / "run")
    attach_folded(folder.model(HIDDEN), fitted())
    assert not [line for line in again(files, encoder_folder, place) if "damaged" in line]  # all are there
    expected = folder.predictions(HIDDEN, "test").read_bytes()
    spoil(folder.predictions(HIDDEN, "test"), "cut")
    config = folder.config.stat().st_mtime_ns
    with pytest.raises(EbmcalError, match="a temperature was folded into the model, so predictions for test"):
        again(files, encoder_folder, place)
    assert folder.config.stat().st_mtime_ns == config  # what is refused changes nothing
    folder.model(HIDDEN).rename(place / "elsewhere")
    again(files, encoder_folder, place)
    assert folder.predictions(HIDDEN, "test").read_bytes() == expected


def test_the_report_refuses_figures_that_changed(place, finished):
    folder = RunFolder(place / "run")
    folder.metrics.write_text(folder.metrics.read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(EbmcalError, match=r"metrics.json changed.*same `ebmcal run`"):
        write_report(folder.root)
    shutil.copy(finished / "run" / "metrics.json", folder.metrics)
    spoil(folder.predictions(HIDDEN, "test"), "flipped")
    with pytest.raises(EbmcalError, match=r"test.parquet changed"):
        write_report(folder.root)
