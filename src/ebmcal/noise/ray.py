"""Generating noise on a Ray cluster with Ray Data: each task writes one shard, each worker loads the LM once.

The driver sends the source texts and adds finished shards to the store, so workers need only the directory of the LM
under the same path. A shard depends on its slots alone and workers compute in one thread, so neither the number of
workers nor a crash of one changes the texts, and a killed driver resumes.
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

from ebmcal.errors import EbmcalError, require_extra
from ebmcal.noise.causal_lm import CARD, NoiseLm
from ebmcal.noise.generation import SamplingSettings, Sources, gather, generate_shard, load_for_sampling
from ebmcal.noise.store import NoiseStore, Shard
from ebmcal.noise.texts import Texts
from ebmcal.training.runtime import use_bf16

#: Shards submitted at a time, which bounds the memory of their source texts.
MAX_SHARDS = 2048

#: Seconds to wait for an answer from the address of a cluster.
CONNECT_TIMEOUT = 5.0


@dataclass(frozen=True)
class RayEngine:
    """An engine for `fill_store`. Without an address, it starts a cluster on this machine for the duration of the call.

    `workers`: by default one per GPU of the cluster, or one per CPU without GPUs.
    """

    address: str | None = None
    workers: int | None = None

    def __call__(
        self, store: NoiseStore, lm_directory: Path, texts: Texts, n_texts: int, settings: SamplingSettings
    ) -> Iterator[tuple[int, int, Shard]]:
        # Decided here: workers on different machines must not differ.
        settings = replace(settings, precision="bf16" if use_bf16(settings.precision) else "fp32")
        with ray_cluster(self.address, self.workers) as n_workers:
            while ranges := store.missing(n_texts, MAX_SHARDS):
                sources = {(start, stop): gather(texts, start, stop, settings.seed) for start, stop in ranges}
                yield from _generate(sources, lm_directory.resolve(), settings, min(n_workers, len(ranges)))


@contextlib.contextmanager
def ray_cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to a cluster, or start one on this machine; yields the number of workers to use."""
    require_extra("ray", "ray")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its log files have the rest
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning about a future default
    import ray

    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        _check_address(address)
        options["address"] = address
    else:
        options |= {"address": "local", "num_cpus": workers or os.cpu_count(), "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
        if signal.getsignal(signal.SIGTERM) is not handler:
            signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the process silently
    except Exception as error:
        what = f"connect to the Ray cluster at {address}" if address else "start a Ray cluster on this machine"
        raise EbmcalError(f"Could not {what}: {_first_line(error)}") from error
    try:
        resources = ray.cluster_resources()
        yield workers or max(1, int(resources.get("GPU") or resources.get("CPU", 1)))
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Fail within seconds; Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise EbmcalError(f"--ray-address: expected HOST:PORT (for example head-node:6379) or auto, got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise EbmcalError(
            f"Nothing answers at the Ray address {address} ({error}). Start the cluster there with `ray start --head`, "
            "or omit --ray-address to use this machine."
        ) from error


class ShardWriter:
    """Runs in a worker: loads the LM for the first shard and keeps it."""

    def __init__(self, lm_directory: str, settings: dict[str, Any]) -> None:
        self.lm_directory, self.settings = Path(lm_directory), SamplingSettings(**settings)
        self.lm: NoiseLm | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        (slots,), (encoded,) = batch["slots"], batch["sources"]
        sources = Sources(*json.loads(encoded))
        sources = sources._replace(texts=[(text, pair) for text, pair in sources.texts])
        try:
            result: dict[str, Any] = {"shard": generate_shard(self._load(), sources, self.settings)}
        except EbmcalError as error:
            result = {"error": str(error)}
        return {"slots": [slots], "result": [json.dumps(result)]}

    def _load(self) -> NoiseLm:
        if self.lm is None:
            import torch

            torch.set_num_threads(1)
            if not (self.lm_directory / CARD).is_file():
                raise EbmcalError(
                    f"A Ray worker on {socket.gethostname()} finds no noise LM in {self.lm_directory}. Put the cache "
                    "on a file system that all nodes share (--cache-dir)."
                )
            self.lm = load_for_sampling(self.lm_directory, self.settings)
        return self.lm


def _generate(
    sources: dict[tuple[int, int], Sources], lm_directory: Path, settings: SamplingSettings, n_workers: int
) -> Iterator[tuple[int, int, Shard]]:
    """Shards as they are finished."""
    import ray

    items = [{"slots": f"{start}-{stop}", "sources": json.dumps(found)} for (start, stop), found in sources.items()]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        ShardWriter,
        fn_constructor_args=(str(lm_directory), asdict(settings)),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=n_workers),
        num_cpus=1,
        num_gpus=1 if ray.cluster_resources().get("GPU") else 0,
    )  # Ray Data restarts a worker that crashed and repeats its task
    try:
        for row in results.iter_rows():
            result = json.loads(row["result"])
            if "error" in result:
                raise EbmcalError(result["error"])
            start, stop = map(int, row["slots"].split("-"))
            yield start, stop, Shard(*result["shard"])
    except ray.exceptions.RayError as error:
        raise EbmcalError(f"Ray failed: {_first_line(error)} Run the same command again to continue.") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
