"""A Ray cluster: connect to one or start one, and apply a function to many items on it.

Workers compute in one thread, so the results do not depend on their number. Ray restarts a worker that dies and repeats
its item.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ebmcal.errors import EbmcalError, require_extra

#: Seconds to wait for an answer from the address of a cluster.
CONNECT_TIMEOUT = 5.0

#: How often an item is repeated after its worker died: an item that crashes every worker ends the job.
MAX_RETRIES = 3


@contextlib.contextmanager
def ray_cluster(address: str | None, workers: int | None) -> Iterator[int]:
    """Connect to a cluster, or start one on this machine; yields the number of workers to use.

    `workers`: by default, and at most, one per GPU of the cluster, or one per CPU without GPUs.
    """
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
        most = max(1, int(resources.get("GPU") or resources.get("CPU", 1)))
        yield min(workers or most, most)
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Fail within seconds; Ray itself would try for a minute."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError, ValueError) as error:
        raise EbmcalError(
            f"Nothing answers at the Ray address {address} ({error}); expected HOST:PORT or auto. Start the cluster "
            "there with `ray start --head`, or omit --ray-address to use this machine."
        ) from error


class _Worker:
    """Runs on the cluster; gets the function once."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        import torch

        torch.set_num_threads(1)
        self.function = function

    def call(self, item: Any) -> Any:
        try:
            return self.function(item)
        except EbmcalError as error:  # raised by the driver; Ray would add its own traceback
            return error


def map_on_cluster(
    function: Callable[[Any], Any], items: Iterable[Any], n_workers: int, *, in_order: bool
) -> Iterator[Any]:
    """The results of `function` for all items, in order or as they are finished; one item per worker at a time."""
    import ray
    from ray.util import ActorPool

    n_gpus = 1 if ray.cluster_resources().get("GPU") else 0
    options = {"num_cpus": 1, "num_gpus": n_gpus, "max_restarts": -1, "max_task_retries": MAX_RETRIES}
    shared, worker = ray.put(function), ray.remote(**options)(_Worker)
    pool, n_started = ActorPool([]), 0

    def next_result() -> Any:
        found = pool.get_next() if in_order else pool.get_next_unordered()
        if isinstance(found, EbmcalError):
            raise found
        return found

    try:
        for item in items:
            while not pool.has_free():
                if n_started < n_workers:
                    pool.push(worker.remote(shared))
                    n_started += 1
                else:
                    yield next_result()
            pool.submit(lambda actor, value: actor.call.remote(value), item)
        while pool.has_next():
            yield next_result()
    except ray.exceptions.RayError as error:
        raise EbmcalError(
            f"Ray stopped the job: {_first_line(error)} Finished work is kept; run the same command again to continue."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
