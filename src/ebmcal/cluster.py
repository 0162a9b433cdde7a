"""A Ray cluster: connect to one or start one, and apply a function to many items on it through Ray Data.

Workers compute in one thread, so the results do not depend on their number. Ray restarts a worker that dies and repeats
its item.
"""

import contextlib
import logging
import os
import pickle
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

    `workers`: by default one per GPU of the cluster, or one per CPU without GPUs.
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
        yield workers or max(1, int(resources.get("GPU") or resources.get("CPU", 1)))
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
    """Runs on the cluster; gets the function from Ray's object store once."""

    def __init__(self, function: Any) -> None:
        import ray
        import torch

        torch.set_num_threads(1)
        self.function: Callable[[Any], Any] = ray.get(function)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        (item,) = batch["item"]
        try:
            result = self.function(pickle.loads(item))
        except EbmcalError as error:  # raised by the driver; Ray would retry it
            result = error
        return {"item": [pickle.dumps(result)]}


def map_on_cluster(
    function: Callable[[Any], Any], items: Iterable[Any], n_workers: int, *, in_order: bool
) -> Iterator[Any]:
    """The results of `function` for all items, in order or as they are finished; all of them can be pickled.

    All items are read first; they wait in Ray's object store, which spills to disk.
    """
    import pyarrow as pa
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_options.preserve_order = in_order
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    blocks = [ray.put(pa.table({"item": pa.array([pickle.dumps(item)], pa.large_binary())})) for item in items]
    if not blocks:
        return
    results = ray.data.from_arrow_refs(blocks).map_batches(
        _Worker,
        fn_constructor_args=(ray.put(function),),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(n_workers, len(blocks))),
        num_cpus=1,
        num_gpus=1 if ray.cluster_resources().get("GPU") else 0,
        max_restarts=-1,
        max_task_retries=MAX_RETRIES,
    )
    try:
        for row in results.iter_rows():
            found = pickle.loads(row["item"])
            if isinstance(found, EbmcalError):
                raise found
            yield found
    except ray.exceptions.RayError as error:
        raise EbmcalError(
            f"Ray stopped the job: {_first_line(error)} Finished work is kept; run the same command again to continue."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
