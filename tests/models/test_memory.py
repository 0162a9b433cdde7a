"""Memory that was freed is used again."""

import subprocess
import sys

import pytest

from ebmcal.models.memory import reuse_freed_memory

#: Pages that the system had to clear while a large block was made and let go twenty times over.
FAULTS = """
import resource, sys, torch
from ebmcal.models.memory import reuse_freed_memory

if sys.argv[1] == "reuse":
    reuse_freed_memory()
torch.ones(20_000_000)  # the heap grows once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(20_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not reuse_freed_memory(), reason="the C library has no mallopt")
def test_large_blocks_are_not_asked_for_again_and_again() -> None:
    assert _faults("reuse") < _faults("leave") / 2
