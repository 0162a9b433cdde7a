"""The limits of a server. Each one is an option of `ebmcal serve`."""

from dataclasses import dataclass, fields

from ebmcal.errors import EbmcalError


@dataclass(frozen=True)
class Limits:
    """Limits of a server, checked on construction; all problems are reported at once.

    >>> Limits(max_texts=8).max_texts
    8
    >>> Limits(max_texts=0, timeout=-1)
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: max_texts must be at least 1, got 0. timeout must be greater than 0, got -1.
    """

    max_body: int = 1_000_000  # bytes per request; above: 413
    max_texts: int = 256  # per request; above: 422, as for the next two
    max_characters: int = 100_000  # per text
    max_tokens: int = 32_768  # per request, after each text is truncated to the model's maximum length
    max_queue: int = 1024  # texts waiting for the model; a request that does not fit gets 429
    max_buffered: int = 64_000_000  # bytes of all request bodies in memory; a request that does not fit gets 503
    max_connections: int = 4096  # lowered to what the file-descriptor limit allows
    timeout: float = 30.0  # seconds per request; then 504
    header_timeout: float = 10.0  # seconds until the headers of a request are complete; then the connection is closed
    batch_tokens: int = 1024  # per batch: larger batches are hardly faster on a CPU and increase latency
    batch_wait: float = 0.002  # maximum batching delay in seconds, only while several clients are active
    stall: float = 60.0  # seconds without progress of the worker after which /healthz fails

    def __post_init__(self) -> None:
        wrong = [message for field in fields(self) if (message := _problem(field.name, getattr(self, field.name)))]
        if not wrong and self.max_queue < self.max_texts:
            wrong.append(f"max_queue must be at least max_texts ({self.max_texts}), got {self.max_queue}.")
        if not wrong and self.max_buffered < self.max_body:
            wrong.append(f"max_buffered must be at least max_body ({self.max_body}), got {self.max_buffered}.")
        if wrong:
            raise EbmcalError(" ".join(wrong))


def _problem(name: str, value: float) -> str:
    if name == "batch_wait":
        return "" if value >= 0 else f"{name} must be at least 0, got {value}."
    if isinstance(getattr(Limits, name), int):
        return "" if value >= 1 else f"{name} must be at least 1, got {value}."
    return "" if value > 0 else f"{name} must be greater than 0, got {value}."
