"""Batches side by side on the cores of a CPU, instead of every operation of one batch on all cores.

The operations of a small encoder take a fraction of a millisecond; dividing each of them costs a quarter of the time in
waiting, and much more next to another busy process. Dividing the batches costs almost nothing.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: More threads would wait for Python's lock.
MAX_THREADS = 8


@contextlib.contextmanager
def parallel_map(n_items: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` over several threads that share the cores, results in order; the plain one for a single item or core.

    >>> with parallel_map(3) as run:
    ...     list(run(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    n_cores = torch.get_num_threads()
    n_threads = min(n_items, n_cores, MAX_THREADS)
    if n_threads < 2:
        yield map
        return
    pool = ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(n_cores // n_threads,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_cores)  # the threads' own number is also that of threads that start later


class SeededDropout(TorchFunctionMode):
    """Dropout that depends on a seed, not on what other threads draw from torch's generator.

    with SeededDropout(seed):
        output = model(batch)
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._drop(*args, **kwargs)
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p"):
            return self._attend(*args, **kwargs)
        return func(*args, **kwargs)

    def _drop(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        return x * self._kept(x.shape, p).to(x.dtype).mul_(1 / (1 - p))

    def _kept(self, shape: torch.Size, p: float) -> Tensor:
        """Which values are kept. Four values share a draw of 64 bits: several times as fast as `bernoulli_`."""
        n = math.prod(shape)
        bits = torch.empty(math.ceil(n / 4), dtype=torch.int64).random_(-(2**63), None, generator=self.generator)
        return (bits.view(torch.int16)[:n] >= round(p * 2**16) - 2**15).view(shape)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """As torch computes attention with dropout on CPU: [n, H, L, D] -> [n, H, L, D]."""
        if is_causal or enable_gqa:
            raise NotImplementedError("only the attention of encoders")
        scores = (q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.transpose(-2, -1)
        scores = scores if attn_mask is None else scores + attn_mask
        return self._drop(scores.softmax(dim=-1), dropout_p) @ v
