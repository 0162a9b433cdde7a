"""Noise on a Ray cluster: the store of one process, whatever the workers and whoever of them dies."""

import json
import os
import signal
import time

import pytest
import torch

from ebmcal.cli import main
from ebmcal.data import load_texts
from ebmcal.errors import EbmcalError
from ebmcal.noise.filling import fill, here
from ebmcal.noise.lm import CARD, FORMAT
from ebmcal.noise.on_ray import RayEngine
from ebmcal.noise.store import NoiseSettings, NoiseStore, Shard
from ebmcal.progress import Reporter
from ebmcal.storage.atomic import write_json
from tiny_models import SENTENCES, make_noise_lm

#: Ray warns of its own future.
pytestmark = pytest.mark.filterwarnings("ignore")

SETTINGS = NoiseSettings(top_k=5, samples_per_mask=4, sources_per_shard=10, seed=3, precision="fp32")
WANTED = 700
ABOUT = {"format": FORMAT, "name": "small", "mode": "gaps", "mask_ratio": 0.4, "max_length": 24, "label_names": []}


@pytest.fixture(scope="module", autouse=True)
def workers_as_nice_as_others():
    """Ray's workers give way to all other processes; on a busy machine the tests would take minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": s}) for s in SENTENCES))
    return load_texts(folder / "texts.jsonl", folder / "cache")


@pytest.fixture(scope="module")
def lm_folder(tmp_path_factory):
    """An untrained noise LM that ends a gap now and then: the end mark gets a push from the last bias."""
    folder, lm = tmp_path_factory.mktemp("lm"), make_noise_lm("gpt2", mode="gaps")
    with torch.no_grad():
        end = lm.model.transformer.wte.weight[lm.markers.end]
        end.copy_(torch.randn(len(end), generator=torch.Generator().manual_seed(0)))
        lm.model.transformer.ln_f.bias += 3 * end / end.norm() ** 2
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    write_json(folder / CARD, ABOUT)
    return folder


def make_store(folder, lm_folder, texts, engine, wanted=WANTED):
    store = NoiseStore.open(folder, SETTINGS.identity("data", ABOUT, "key"))
    fill(store, lm_folder, texts, wanted, Reporter(), engine)
    return store


@pytest.fixture(scope="module")
def undisturbed(lm_folder, texts, tmp_path_factory):
    """The store that this process makes alone."""
    return make_store(tmp_path_factory.mktemp("here"), lm_folder, texts, here)


def assert_same_store(a, b):
    assert a.shards == b.shards
    assert list(a.rows()) == list(b.rows())


def worker_pids():
    """Processes of this test's Ray that write shards."""
    import psutil

    return {p.pid for p in psutil.Process().children(recursive=True) if "ShardWriter" in " ".join(_command(p))}


def _command(process):
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_the_store_is_worth_comparing(undisturbed):
    assert len(undisturbed.shards) > 14
    assert len(undisturbed) == WANTED
    assert len({row["text"] for row in undisturbed.rows()}) > 100


def test_a_worker_that_dies_changes_nothing(undisturbed, lm_folder, texts, tmp_path):
    """Two workers on a cluster of this machine; one is killed when three shards are there."""
    pytest.importorskip("ray")
    seen, handler = [], signal.getsignal(signal.SIGTERM)

    def killing(*arguments):
        for i, finished in enumerate(RayEngine(workers=2)(*arguments)):
            assert signal.getsignal(signal.SIGTERM) is handler, "SIGTERM should stop the command as it does without Ray"
            yield finished
            seen.append(worker_pids())
            if i == 2:
                os.kill(min(seen[-1]), signal.SIGKILL)

    store = make_store(tmp_path, lm_folder, texts, killing)
    assert_same_store(store, undisturbed)
    victim = min(seen[2])
    assert len(seen) > 6
    assert victim not in seen[-1]
    assert not worker_pids(), "the cluster should have ended with the engine"


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


@pytest.mark.slow
def test_a_cluster_at_an_address_whatever_its_workers(cluster, undisturbed, lm_folder, texts, tmp_path):
    one = make_store(tmp_path / "one", lm_folder, texts, RayEngine(cluster, workers=1))
    all_ = make_store(tmp_path / "all", lm_folder, texts, RayEngine(cluster))
    assert_same_store(one, undisturbed)
    assert_same_store(all_, undisturbed)


@pytest.mark.slow
def test_an_interrupted_driver_goes_on(cluster, undisturbed, lm_folder, texts, tmp_path):
    made = []

    def interrupted(*arguments):
        for finished in RayEngine(cluster)(*arguments):
            if len(made) == 4:
                raise KeyboardInterrupt
            made.append(finished[0])
            yield finished

    with pytest.raises(KeyboardInterrupt):
        make_store(tmp_path, lm_folder, texts, interrupted)
    assert sorted(NoiseStore.open(tmp_path).shards) == sorted(made)
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("shard-*")}
    assert_same_store(make_store(tmp_path, lm_folder, texts, RayEngine(cluster)), undisturbed)
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


@pytest.mark.slow
def test_workers_without_the_lm_say_so(cluster, texts, tmp_path):
    with pytest.raises(EbmcalError, match=r"A Ray worker on .* finds no noise LM in .*--cache-dir"):
        make_store(tmp_path / "store", tmp_path / "nothing", texts, RayEngine(cluster))


def test_an_address_where_nothing_answers(texts, tmp_path):
    pytest.importorskip("ray")
    start = time.monotonic()
    with pytest.raises(EbmcalError, match=r"Nothing answers at the Ray address 127.0.0.1:1 .*ray start --head"):
        make_store(tmp_path / "store", tmp_path, texts, RayEngine("127.0.0.1:1"))
    for address in ("somewhere", "host:", ":6379", "host:port"):
        with pytest.raises(EbmcalError, match=f"takes HOST:PORT.*{address!r} came"):
            make_store(tmp_path / "store", tmp_path, texts, RayEngine(address))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "rey"], "Unknown engine 'rey'. Did you mean 'ray'"),
        (["--ray-workers", "2"], "--ray-address and --ray-workers are for --engine ray"),
    ],
)
def test_mistakes_on_the_command_line(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["noise", "sample", "--train", "absent.csv", *options])
    assert message in capsys.readouterr().err


def test_without_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ray" else True)
    with pytest.raises(SystemExit):
        main(["noise", "sample", "--train", "absent.csv", "--engine", "ray"])
    assert "pip install 'ebmcal[ray]'" in capsys.readouterr().err


def rows(n):
    return [{"source_id": 0, "round": 0, "sample": 0, "text": "a", "identical": False}] * n


def test_which_shards_will_be_needed(tmp_path):
    """40 texts fill a shard."""
    store = NoiseStore.open(tmp_path, SETTINGS.identity("data", ABOUT, "key"))
    assert store.likely_shards(400, limit=99) == list(range(10))
    assert store.likely_shards(400, limit=4) == [0, 1, 2, 3]
    for number in (0, 1, 3):
        store.add(number, Shard(rows(20), {}))
    assert store.likely_shards(60, limit=99) == [2]  # 20 + 20 + at most 22, and 3 is not needed
    assert store.likely_shards(100, limit=99) == [2, 4]
    store.add(2, Shard(rows(20), {}))
    assert store.likely_shards(80, limit=99) == []
    assert store.likely_shards(81, limit=99) == [4]


def test_shards_without_usable_texts_end_it(tmp_path):
    store = NoiseStore.open(tmp_path, SETTINGS.identity("data", ABOUT, "key"))
    for number in range(20):
        store.add(number, Shard([], {"separator": [0] * 40}))
    store.check_usable()
    assert store.likely_shards(3, limit=99) == [20, 21, 22]
    store.add(20, Shard([], {"separator": [0] * 40}))
    with pytest.raises(EbmcalError, match="21 shards without one usable text"):
        store.check_usable()
