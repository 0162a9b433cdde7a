"""float32 or bfloat16: which is faster on this machine."""

import os
import subprocess
import sys

import torch

from ebmcal.errors import EbmcalError, unknown_name

PRECISIONS = ("fp32", "bf16", "auto")

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

#: bfloat16 is used by default if it is faster than float32 by this factor. Child processes find the measured one here.
MIN_BF16_SPEEDUP = 1.2
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
    """Whether to compute in bfloat16; `auto` uses it if the hardware is faster with it."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "fp32":
        return False
    if torch.cuda.is_available():
        return precision == "bf16" or torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16":
        if not bf16_speedup():
            raise EbmcalError(
                "bfloat16 crashes on this CPU (seen on virtual machines with AMX). Use fp32 (in training "
                "--set precision=fp32); ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 disables AMX."
            )
        return True
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(probe() for probe in probes if probe is not None) and bf16_speedup() > MIN_BF16_SPEEDUP
