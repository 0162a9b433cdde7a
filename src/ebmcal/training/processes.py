"""Several processes of one training (torchrun): who is first, and letting it go first."""

import contextlib
import os
from collections.abc import Iterator


def n_processes() -> int:
    """Processes that share a training; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that writes."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """The first process does the block alone; then the others do it, and find what it has made."""
    if n_processes() == 1:
        yield
        return
    from accelerate import PartialState

    with PartialState(cpu=_on_cpu()).main_process_first():
        yield


def any_process(value: bool) -> bool:
    """Whether it is true in one of the processes; each has to ask."""
    if n_processes() == 1:
        return value
    import torch
    from accelerate import PartialState
    from accelerate.utils import reduce

    return bool(reduce(torch.tensor(float(value), device=PartialState().device), "sum").item())


def _on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()
