"""Memory that was freed is used again.

glibc gives a large block back to the system as soon as it is freed and asks for a new one at the next step, which the
system clears page by page: about a tenth of a training step on a CPU, more where logits over a vocabulary are made.
"""

import ctypes
import sys
from functools import cache

#: Of malloc.h: no block comes straight from the system; how much is kept at the end of the heap, and asked for at once.
M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD = -4, -1, -2

KEPT, ASKED = 1 << 30, 1 << 27


@cache
def reuse_freed_memory() -> bool:
    """Have this process keep what it freed: a gigabyte at the end of its heap, and what lies below blocks in use.

    False where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all(
        mallopt(option, value) for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, KEPT), (M_TOP_PAD, ASKED))
    )
