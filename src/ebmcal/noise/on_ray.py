"""Bulk noise on a Ray cluster, through Ray Data: each task writes one shard, each worker loads the noise LM once.

The driver holds the store: it sends source texts and enters shards as they come back, so a killed driver goes on where
it stopped, and workers need nothing but the folder of the noise LM under the same path. A worker computes in one
thread and a shard is a pure function of its number, so neither their number nor their deaths change the store.
"""

import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ebmcal.data import Texts
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.noise.filling import Sources, gather, load_for_sampling, rewrite_sources
from ebmcal.noise.lm import CARD, NoiseLm
from ebmcal.noise.store import NoiseSettings, NoiseStore, Shard
from ebmcal.training.running import uses_bf16

#: Shards handed to Ray Data at a time: bounds the memory of their source texts.
WAVE = 2048

#: Seconds to wait for an answer from the address of a cluster.
PATIENCE = 5.0


@dataclass(frozen=True)
class RayEngine:
    """An engine for `noise_sampling.fill`. Without an address, a cluster on this machine that ends with the command."""

    address: str | None = None
    workers: int | None = None  # by default one for each GPU of the cluster, or each CPU when it has none

    def __call__(self, store: NoiseStore, lm_folder: Path, texts: Texts, n_wanted: int) -> Iterator[tuple[int, Shard]]:
        # `auto` is settled here: workers on unlike machines must not differ.
        precision = "bf16" if uses_bf16(store.settings.precision) else "fp32"
        settings, folder = replace(store.settings, precision=precision), lm_folder.resolve()
        with cluster(self.address, self.workers) as n_workers:
            while numbers := store.likely_shards(n_wanted, WAVE):
                tasks = ((n, gather(texts, n, settings)) for n in numbers)
                yield from _written(tasks, folder, settings, min(n_workers, len(numbers)))


@contextlib.contextmanager
def cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to a cluster, or start one here; yields how many workers to use."""
    require_extra("ray", "ray")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its own files keep the rest
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it, Ray warns of its own future
    import ray

    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        _require_reachable(address)
        settings["address"] = address
    else:
        settings |= {"address": "local", "num_cpus": workers or os.cpu_count(), "include_dashboard": False}
    stop = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**settings)
        if signal.getsignal(signal.SIGTERM) is not stop:
            signal.signal(signal.SIGTERM, stop)  # Ray's own would end the command without a word
    except Exception as error:
        where = f"to the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        verb = "connect" if address else "start"
        raise EbmcalError(f"Could not {verb} {where}: {_first_line(error)}") from error
    try:
        found = ray.cluster_resources()
        yield workers or max(1, int(found.get("GPU") or found.get("CPU", 1)))
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise EbmcalError(f"--ray-address takes HOST:PORT, for example head-node:6379, or auto; {address!r} came.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise EbmcalError(
            f"Nothing answers at the Ray address {address} ({error}). Start the cluster with `ray start --head` there, "
            "or leave --ray-address out for a cluster on this machine."
        ) from error


class ShardWriter:
    """What runs in a worker: the noise LM is loaded for the first shard and kept."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.folder, self.settings = Path(folder), NoiseSettings(**settings)
        self.lm: NoiseLm | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        (number,), (sources,) = batch["number"], batch["sources"]
        try:
            result: Any = {"shard": rewrite_sources(self._load(), Sources(**json.loads(sources)), self.settings)}
        except EbmcalError as error:
            result = {"error": str(error)}
        return {"number": [number], "result": [json.dumps(result)]}

    def _load(self) -> NoiseLm:
        if self.lm is None:
            import torch

            torch.set_num_threads(1)
            if not (self.folder / CARD).exists():
                raise EbmcalError(
                    f"A Ray worker on {socket.gethostname()} finds no noise LM in {self.folder}. Workers load it from "
                    "there: put the cache on a file system that all nodes share (--cache-dir)."
                )
            self.lm = load_for_sampling(self.folder, self.settings)
        return self.lm


def _written(
    tasks: Iterator[tuple[int, Sources]], folder: Path, settings: NoiseSettings, n_workers: int
) -> Iterator[tuple[int, Shard]]:
    """Shards as they are finished."""
    import ray

    items = [{"number": number, "sources": json.dumps(asdict(sources))} for number, sources in tasks]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        ShardWriter,
        fn_constructor_args=(str(folder), asdict(settings)),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=n_workers),
        num_cpus=1,
        num_gpus=1 if ray.cluster_resources().get("GPU") else 0,
    )  # Ray Data starts a worker that died again, and hands its shards out again
    try:
        for row in results.iter_rows():
            result = json.loads(row["result"])
            if "error" in result:
                raise EbmcalError(result["error"])
            yield row["number"], Shard(*result["shard"])
    except ray.exceptions.RayError as error:
        raise EbmcalError(
            f"Ray gave up: {_first_line(error)} What was finished is kept; the same command goes on from there."
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
