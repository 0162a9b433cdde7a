"""What docs/security.md promises: nothing unpickled, no code of others, no network unasked, no path out of a folder."""

import ast
import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers.trainer
import yaml

import ebmcal
from ebmcal.benchmark import load_benchmark
from ebmcal.calibrators.folding import fold
from ebmcal.config import RunConfig, load_config
from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.loading import check_encoder, check_language_model, load_encoder, load_language_model
from ebmcal.models.tokens import TokenTable
from ebmcal.noise.store import RECORD, NoiseSettings, NoiseStore
from ebmcal.predictions import Predictions
from ebmcal.report.reading import read_run
from ebmcal.storage.checksums import fingerprint
from ebmcal.storage.sealing import damage
from full_disk import arguments, write_reviews
from synthetic_run import make_run
from tiny_models import make_encoder, make_wordpiece, save_encoder

HERE, SOURCE = Path(__file__).parent, Path(ebmcal.__file__).parent
MODULES = {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}  # also where the project is not installed


def watched(commands, **environment):
    """What the audit hooks saw of commands that ran in a process of their own."""
    command = [sys.executable, HERE / "watched_run.py", json.dumps(commands)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | MODULES | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


# Weights, pickles, code


def test_a_run_and_a_resumed_one_unpickle_nothing_and_use_no_network(encoder_folder, tmp_path):
    """The hub is allowed, every name is local. The second run reads a checkpoint: optimizer, schedule, generators."""
    run = [*arguments(tmp_path, str(encoder_folder), write_reviews(tmp_path / "reviews.csv")), "--keep-checkpoints"]
    model = tmp_path / "run" / "checkpoints" / "hidden-seed1" / "model"
    predict = ["predict", str(model), str(tmp_path / "reviews.csv"), "--output", str(tmp_path / "new.npz")]
    evaluate = ["evaluate", str(tmp_path / "run" / "predictions" / "hidden-seed1" / "test.parquet")]
    seen, said = watched([run, {"remove": str(model)}, run, predict, evaluate], HF_HUB_OFFLINE="0")
    assert seen == {"unpickled": [], "network": [], "codes": [0, 0, 0, 0]}, said
    assert "goes on at step 4 of 4" in (tmp_path / "run" / "log.txt").read_text()


def test_the_watch_sees_what_it_should(tmp_path, encoder_folder):
    """A hub name with the network allowed is looked up; in offline mode it is not, and the error says what to do."""
    run = arguments(tmp_path, "nobody/no-such-encoder", write_reviews(tmp_path / "reviews.csv"))
    offline, said = watched([run], HF_HUB_OFFLINE="1")
    assert offline == {"unpickled": [], "network": [], "codes": [1]}
    assert "Without the hub, use a built-in one or a local folder" in " ".join(said.split())
    code = "import watched_run, sys, pickle, socket; sys.addaudithook(watched_run.watch)\n"
    code += "pickle.loads(pickle.dumps(ValueError))\ntry: socket.getaddrinfo('localhost', 1)\nexcept OSError: pass\n"
    code += "print(watched_run.seen)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=MODULES,
    )
    assert "builtins.ValueError" in done.stdout
    assert "localhost" in done.stdout


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def bomb(tmp_path):
    return Bomb(tmp_path / "exploded")


def only_pickled_weights(folder, bomb):
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(bomb))
    return folder


def test_pickled_weights_are_refused(tmp_path, bomb):
    encoder = only_pickled_weights(tmp_path / "encoder", bomb)
    make_encoder("bert").config.save_pretrained(encoder)
    make_wordpiece().save_pretrained(encoder)
    for check in (check_encoder, check_language_model):
        with pytest.raises(EbmcalError, match=r"no \.safetensors weights.*unpickling runs code"):
            check(str(encoder))
    for use in (load, EnergyClassifier.from_pretrained):
        with pytest.raises(EbmcalError, match="safetensors"):
            use(encoder)
    for use in (lambda: load_encoder(str(encoder), ("a", "b")), lambda: load_language_model(str(encoder))):
        with pytest.raises(Exception, match="safetensors"):
            use()
    assert not bomb.path.exists()


def test_pickled_arrays_are_refused(tmp_path, bomb):
    np.save(tmp_path / "ids.npy", np.array([bomb], dtype=object), allow_pickle=True)
    for name in ("types", "offsets"):
        np.save(tmp_path / f"{name}.npy", np.array([0]))
    (tmp_path / "meta.json").write_text('{"n_tokens": 1, "n_truncated": 0}')
    assert TokenTable.open(tmp_path) is None
    np.savez(tmp_path / "p.npz", labels=np.array([bomb], dtype=object), probs=np.array([[1.0]]))
    with pytest.raises(EbmcalError):
        Predictions.read(tmp_path / "p.npz")
    assert not bomb.path.exists()


def test_checkpoints_are_read_without_unpickling_objects(tmp_path, bomb):
    """The Trainer's optimizer and generator files are zip archives of tensors, read with `weights_only`."""
    torch.save({"state": bomb}, tmp_path / "optimizer.pt")
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights.only"):
        torch.load(tmp_path / "optimizer.pt", weights_only=True)
    assert not bomb.path.exists()
    calls = re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", Path(transformers.trainer.__file__).read_text())
    assert len(calls) >= 4
    assert all("weights_only=True" in call for call in calls)


@pytest.mark.parametrize(("model_type", "said"), [("bert", None), ("their-own", "code of its own, which is not run")])
def test_code_in_a_model_folder_does_not_run_unasked(tmp_path, model_type, said):
    folder = save_encoder(tmp_path / "encoder")
    config = json.loads((folder / "config.json").read_text())
    classes = {f"Auto{name}": "theirs.C" for name in ("Config", "ModelForSequenceClassification", "ModelForCausalLM")}
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": classes, "model_type": model_type}))
    (folder / "theirs.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    with pytest.raises(EbmcalError, match=said) if said else contextlib.nullcontext():
        check_encoder(str(folder))
    uses = (check_language_model, load, lambda name: load_encoder(str(name), ("a", "b")), load_language_model)
    for use in uses:
        with contextlib.suppress(Exception):
            use(folder if use is load else str(folder))
    assert not (tmp_path / "ran").exists()


def test_the_flag_for_remote_code_says_what_it_means():
    field = RunConfig.model_fields["trust_remote_code"]
    assert field.default is False
    assert "can do anything you can" in field.description


# Configs


def test_yaml_makes_no_objects(tmp_path):
    (tmp_path / "c.yaml").write_text(f"output: !!python/object/apply:pathlib.Path.touch [{tmp_path / 'ran'}]\n")
    with pytest.raises(EbmcalError, match="not readable YAML"):
        load_config(tmp_path / "c.yaml", {})
    assert not (tmp_path / "ran").exists()


CALLS = {"load", "load_all", "full_load", "unsafe_load", "full_load_all", "unsafe_load_all"}


def test_no_module_uses_what_runs_the_code_of_others():
    """pickle, eval, exec, a YAML loader that makes objects, torch.load: nowhere in the package."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
                assert not names & {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = getattr(node.func.value, "id", "")
                assert not (owner in {"yaml", "torch"} and node.func.attr in CALLS), path


# Paths


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "/etc/x", "", "a.b"])
def test_names_of_other_texts_stay_names(name):
    with pytest.raises(EbmcalError, match=r"becomes part of a file name"):
        load_config(None, {"ood": {name: "books.csv"}})


def test_methods_and_seeds_stay_names():
    for wrong in ({"methods": ["../hidden"]}, {"seeds": ["../1"]}, {"noise_mode": "../gaps"}):
        with pytest.raises(EbmcalError):
            load_config(None, wrong)


def test_benchmark_names_stay_names(tmp_path):
    for name in ("../up", "a/b", "/abs", ".."):
        (tmp_path / "b.yaml").write_text(yaml.safe_dump({"output": "x", "tasks": [{"name": name, "train": "t.csv"}]}))
        with pytest.raises(EbmcalError, match="becomes a folder"):
            load_benchmark(tmp_path / "b.yaml")


def test_a_list_of_shards_cannot_point_elsewhere(tmp_path):
    identity = NoiseSettings().identity("d", {"name": "n", "mode": "m", "mask_ratio": 1, "max_length": 1}, "k")
    store = NoiseStore.open(tmp_path / "store", identity)
    entry = {"rows": 1, "identical": 0, "thrown_away": {}, "sha256": "0"}
    lines = [json.dumps([n, entry, fingerprint(n, entry)]) for n in ("../../x", "1/../../x", None, [1])]
    (store.folder / RECORD).write_text("\n".join(lines))
    again = NoiseStore.open(tmp_path / "store", identity)
    assert again.shards == {}
    assert again.shard_path(3).parent == tmp_path / "store"


def test_checksums_cannot_point_elsewhere(tmp_path):
    (tmp_path / "secret").write_text("s")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "checksums.json").write_text('{"../secret": "0"}')
    assert damage(tmp_path / "model") == ["checksums.json is missing or unreadable"]


def test_a_list_of_weights_cannot_point_elsewhere(tmp_path):
    """`calibrate --fold` rewrites the file that the list names."""
    victim = save_encoder(tmp_path / "victim") / "model.safetensors"
    before = victim.read_bytes()
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    index = {"weight_map": {"classifier.weight": "../victim/model.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EbmcalError, match="leaves the folder"):
        fold(model, 2.0, 3)
    assert victim.read_bytes() == before


def test_names_in_metrics_are_never_opened(tmp_path, monkeypatch):
    """A report reads what lies in the folder, whatever names `metrics.json` has."""
    metrics = make_run(tmp_path / "run", seeds=(1,), n=60) / "metrics.json"
    document = json.loads(metrics.read_text())
    for row in document["rows"]:
        row["test_set"], row["method"] = "../../../secret", "../../secret"
    metrics.write_text(json.dumps(document))
    opened, real = [], Predictions.read
    monkeypatch.setattr(Predictions, "read", lambda path, **more: opened.append(Path(path).resolve()) or real(path))
    read_run(tmp_path / "run")
    assert opened
    assert all(path.is_relative_to(tmp_path / "run") for path in opened)
