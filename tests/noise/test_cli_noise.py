"""`ebmcal noise generate` and `ebmcal noise show`."""

import csv
import re

import pytest

from ebmcal.noise.generation import NoiseStore, Shard
from ebmcal.storage import write_json
from tiny_models import SENTENCES, save_language_model

ROW = {
    "source_id": "0", "sample": 0, "label": None, "masked": "the film <M> dull", "hidden": ["is"],
    "text": "the film was dull", "text_pair": None,
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    """A store with two texts."""
    made = NoiseStore.open(tmp_path / "store", {"data": "x", "samples_per_mask": 2})
    made.add(0, 1, Shard([ROW, ROW | {"sample": 1, "text": "the film feels dull"}], {"unfinished": 2}))
    return made.directory


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    with open(directory / "moods.csv", "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["text", "label"])
        writer.writerows((text, "good" if "joy" in text or "worth" in text else "bad") for text in SENTENCES)
    return directory / "moods.csv", save_language_model(directory / "lm")


def test_noise_is_generated_once_and_can_be_shown(files, tmp_path, encoder_dir, command):
    data, lm = files
    settings = ["lm_steps=40", "lm_batch_size=8", "lm_learning_rate=0.01", "mask_ratio=0.2", "precision=fp32"]
    settings += [f"cache_dir={tmp_path / 'cache'}"]
    generate = ["noise", "generate", "--train", data, "--encoder", encoder_dir, "--noise", f"infill:{lm}"]
    generate += ["--max-length", "32", "--count", "20", *(w for setting in settings for w in ("--set", setting))]
    out = command(*generate)
    directory = re.search(r"noise show (\S+)", out)[1]
    assert "20 noise texts for training and" in out
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("shard-*")}
    assert times
    command(*generate)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("shard-*")} == times
    out = command("noise", "show", directory, "-n", "2")
    assert out.count("masked   ") == out.count("written  ") == 2


def test_facts_and_examples_of_a_store(store, command):
    out = command("noise", "show", store)
    for line in (
        "texts: 2",
        "rejected samples: {'unfinished': 2}",
        "masked   the film <M> dull",
        "hidden   is",
        "written  the film was dull",
    ):
        assert line in out
    assert "feels" not in out  # one sample per masked text


def test_noise_of_a_run(tmp_path, command):
    sources = {"splice": {"share": 1.0, "online": True, "words": 5.0, "words_of_data": 6.0}}
    write_json(tmp_path / "results.json", {"noise": {"noise": "splice", "sources": sources, "reuse": 1.0}})
    write_json(tmp_path / "noise_examples.json", [{"source": "splice", "text": "a film", "text_pair": "so dull"}] * 3)
    out = command("noise", "show", tmp_path, "-n", "2")
    assert "Noise sources" in out
    assert out.count("source   splice\nwritten  a film <SEP> so dull") == 2
    write_json(tmp_path / "results.json", {"noise": None})
    assert "used no noise" in command("noise", "show", tmp_path, code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--engine", "rey"], "Unknown engine 'rey'. Did you mean 'ray'"),
        (["generate", "--workers", "2"], "--ray-address and --workers need --engine ray"),
        (["generate", "--noise", "splice"], "is made during training; there is nothing to generate"),
        (["show", "absent"], "absent does not exist; expected a run directory or a noise store"),
        (["show", "."], "is not a noise store"),
    ],
)
def test_mistakes(arguments, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in " ".join(command("noise", *arguments, code=1).split())


def test_the_default_noise_has_nothing_to_generate(files, encoder_dir, tmp_path, command):
    options = ["--train", files[0], "--encoder", encoder_dir, "--max-length", "32", "--set", f"cache_dir={tmp_path}"]
    assert "there is nothing to generate" in " ".join(command("noise", "generate", *options, code=1).split())


def test_ray_needs_its_extra(command, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "ray" else find(name, *a))
    assert "--editable '.[ray]'" in command("noise", "generate", "--engine", "ray", code=1)
