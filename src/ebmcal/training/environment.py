"""The machine a training runs on: precision, number of processes, memory reuse."""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import torch

from ebmcal.errors import EbmcalError

#: Compares a product in bfloat16 with float32, in its own process: it may crash.
_BF16_BENCHMARK = """
import time, torch
torch.set_num_threads(1)

def seconds(dtype):
    x, w = torch.ones(1024, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    torch.nn.functional.linear(x, w)
    start = time.perf_counter()
    for _ in range(10):
        torch.nn.functional.linear(x, w)
    return time.perf_counter() - start

print(min(seconds(torch.float32) for _ in range(3)) / min(seconds(torch.bfloat16) for _ in range(3)))
"""

#: bfloat16 is used by default if it is faster than float32 by this factor.
MIN_BF16_SPEEDUP = 1.2

#: Child processes find the measured speedup here.
_BF16_VARIABLE = "EBMCAL_BF16_SPEEDUP"


def bf16_speedup() -> float:
    """How much faster a matrix product is in bfloat16 than in float32 on this CPU; 0 if it crashes.

    CPU flags are not enough: some virtual machines announce AMX and kill a process that uses it, and emulated bfloat16
    is twenty times slower.
    """
    if _BF16_VARIABLE not in os.environ:
        result = subprocess.run([sys.executable, "-c", _BF16_BENCHMARK], capture_output=True, text=True, check=False)
        os.environ[_BF16_VARIABLE] = result.stdout.strip() if result.returncode == 0 else "0"
    return float(os.environ[_BF16_VARIABLE])


def use_bf16(precision: str) -> bool:
    """Whether to train in bfloat16; `auto` uses it if the hardware is faster with it."""
    if torch.cuda.is_available():
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return precision == "bf16" or (precision == "auto" and supported)
    if precision == "bf16" and not bf16_speedup():
        raise EbmcalError(
            "bfloat16 crashes on this CPU (seen on virtual machines with AMX). Use --set precision=fp32; "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 disables AMX."
        )
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    has_hardware = any(probe() for probe in probes if probe is not None)
    return precision == "bf16" or (precision == "auto" and has_hardware and bf16_speedup() > MIN_BF16_SPEEDUP)


def n_processes() -> int:
    """The number of processes of a torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the first process of a torchrun, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """The main process runs the block first; the others then find what it wrote."""
    if n_processes() == 1:
        yield
        return
    from accelerate import PartialState

    with PartialState(cpu=not torch.cuda.is_available()).main_process_first():
        yield


def device_batch_size(batch_size: int) -> int:
    """The share of a batch that each process gets."""
    if batch_size % n_processes():
        raise EbmcalError(f"A batch of {batch_size} cannot be divided among {n_processes()} processes.")
    return batch_size // n_processes()


@cache
def reuse_freed_memory() -> bool:
    """Let glibc keep freed memory instead of returning it to the system after each step; False without glibc.

    The system clears every page it hands out, which takes about a tenth of a training step on CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # constants of malloc.h
    settings = ((mmap_max, 0), (trim_threshold, 1 << 30), (top_pad, 1 << 27))
    return mallopt is not None and all(mallopt(option, value) for option, value in settings)
