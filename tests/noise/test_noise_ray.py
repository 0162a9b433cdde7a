"""Noise on a Ray cluster: the same texts as in one process, whatever the workers and whichever of them crashes."""

import os
import signal
import time
from dataclasses import asdict

import pytest
import torch
from noise_models import make_noise_lm, make_texts

from ebmcal.errors import EbmcalError
from ebmcal.noise import NoiseConfig, RayEngine
from ebmcal.noise.generation import NoiseStore, fill_store, generate_locally
from ebmcal.progress import Reporter

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

SETTINGS = NoiseConfig(top_k=5, samples_per_mask=4, seed=3, precision="fp32")
WANTED = 700


@pytest.fixture(scope="module", autouse=True)
def ray_settings():
    """Small shards, and workers with the priority of the tests: with Ray's niceness they take minutes when busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setattr("ebmcal.noise.generation.SHARD_SLOTS", 10)
        patch.setattr("ebmcal.noise.generation.MIN_USABLE", 0.0)  # the LM is untrained
        yield


@pytest.fixture(scope="module")
def lm_directory(tmp_path_factory):
    """An untrained noise LM that ends a text now and then: the last bias points towards the end-of-text token."""
    directory, lm = tmp_path_factory.mktemp("lm"), make_noise_lm("gpt2")
    with torch.no_grad():
        end = lm.model.transformer.wte.weight[lm.markers.end]
        end.copy_(torch.randn(len(end), generator=torch.Generator().manual_seed(0)))
        lm.model.transformer.ln_f.bias += 3 * end / end.norm() ** 2
    lm.save(directory, {"mode": "infill", "mask_ratio": 0.4, "max_length": 24, "label_names": []})
    return directory


def fill(directory, lm_directory, engine, wanted=WANTED):
    store = NoiseStore.open(directory, asdict(SETTINGS))
    fill_store(store, lm_directory, make_texts(), wanted, SETTINGS, Reporter(), engine)
    return store


@pytest.fixture(scope="module")
def expected(lm_directory, tmp_path_factory):
    """The texts that this process generates alone."""
    store = fill(tmp_path_factory.mktemp("local"), lm_directory, generate_locally)
    rows = store.rows(WANTED)
    assert len(store.shards) > 14
    assert len({row["text"] for row in rows}) > 100
    return rows


def worker_pids():
    """Processes of this test's Ray that write shards (`_Worker` in `ebmcal.cluster`)."""
    import psutil

    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if "_Worker" in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_crashing_worker_changes_nothing(expected, lm_directory, tmp_path):
    """Two workers on this machine; one is killed after three shards."""
    pytest.importorskip("ray")
    seen, handler = [], signal.getsignal(signal.SIGTERM)

    def killing(*arguments):
        for i, finished in enumerate(RayEngine(workers=2)(*arguments)):
            assert signal.getsignal(signal.SIGTERM) is handler, "SIGTERM should stop the command as without Ray"
            yield finished
            seen.append(worker_pids())
            if i == 2:
                os.kill(min(seen[-1]), signal.SIGKILL)

    assert fill(tmp_path, lm_directory, killing).rows(WANTED) == expected
    assert len(seen) > 6
    assert min(seen[2]) not in seen[-1]
    assert not worker_pids(), "the cluster should end with the engine"


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one CPU each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, None])
def test_a_cluster_at_an_address_with_any_number_of_workers(cluster, expected, lm_directory, tmp_path, workers):
    assert fill(tmp_path, lm_directory, RayEngine(cluster, workers)).rows(WANTED) == expected


@pytest.mark.slow
def test_an_interrupted_driver_resumes(cluster, expected, lm_directory, tmp_path):
    made = []

    def interrupted(*arguments):
        for finished in RayEngine(cluster)(*arguments):
            if len(made) == 4:
                raise KeyboardInterrupt
            made.append(finished[0])
            yield finished

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, lm_directory, interrupted)
    assert sorted(NoiseStore.open(tmp_path).shards) == sorted(made)
    kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("shard-*")}
    assert fill(tmp_path, lm_directory, RayEngine(cluster)).rows(WANTED) == expected
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


@pytest.mark.slow
def test_workers_without_the_lm_are_reported(cluster, tmp_path):
    with pytest.raises(EbmcalError, match=r"A Ray worker on .* finds no noise LM in .*--cache-dir"):
        fill(tmp_path / "store", tmp_path / "nothing", RayEngine(cluster))


def test_unreachable_and_malformed_addresses_fail_quickly(tmp_path):
    pytest.importorskip("ray")
    start = time.monotonic()
    for address in ("127.0.0.1:1", "somewhere", "host:", ":6379", "host:port"):
        with pytest.raises(EbmcalError, match=r"HOST:PORT"):
            fill(tmp_path / "store", tmp_path, RayEngine(address))
    assert time.monotonic() - start < 10
