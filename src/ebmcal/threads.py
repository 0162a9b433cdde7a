"""CPU settings of torch, made when ebmcal is imported: the libraries of torch read these variables once, when loaded.

A thread that finished its part of a matrix product spins until the others are done. If another process holds a core,
it spins for milliseconds instead of giving its own core away, and everything takes three times as long. A small
number of spins costs nothing on an idle machine: threads that wait longer than that sleep.

oneDNN keeps what it prepared for the last 1,024 shapes. Batches of texts have ever new shapes, so the memory of a
server grew for hours without any gain in speed; the shapes of one batch are enough.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path

#: Spins of a waiting thread before it sleeps, about 0.1 ms: longer than the gaps between two operations, much shorter
#: than a time slice. libgomp's default is 300,000.
SPIN_COUNT = 2_000

#: The same for Intel's and LLVM's OpenMP, in milliseconds; their default is 200.
BLOCK_TIME = 1

#: Shapes for which oneDNN keeps its preparations. MiniLM, 120 batches of new shapes: 479 MB with 8, 520 MB and rising
#: by default, at the same speed.
ONEDNN_SHAPES = 8


def configure_threads(environ: MutableMapping[str, str] = os.environ, cgroup: Path = Path("/sys/fs/cgroup")) -> None:
    """Bound spinning, oneDNN's cache, and the threads in a container with a CPU quota; keeps the user's settings."""
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
        environ.setdefault("KMP_BLOCKTIME", str(BLOCK_TIME))
    environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(ONEDNN_SHAPES))
    quota = cpu_quota(cgroup)
    if quota is not None and quota < (os.cpu_count() or 1):
        environ.setdefault("OMP_NUM_THREADS", str(max(1, round(quota))))


def cpu_quota(cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The number of CPUs that the container may use, from its cgroup (version 2 or 1); None without a limit."""
    try:
        if (cgroup / "cpu.max").is_file():
            limit, period = (cgroup / "cpu.max").read_text().split()
        else:
            limit, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(limit) / float(period) if float(limit) > 0 else None
    except (OSError, ValueError):  # not Linux, no limit ("max")
        return None
