"""What a server takes at most, and how long it takes over it. Every limit is a flag of `ebmcal serve`."""

from dataclasses import dataclass, fields

from ebmcal.errors import EbmcalError


@dataclass(frozen=True)
class Limits:
    """Limits of a server; they are checked when they are made, and all that is wrong is said at once.

    >>> Limits(max_texts=8).max_texts
    8
    >>> Limits(max_texts=0, timeout=-1)
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: max_texts is 0; it must be at least 1. timeout is -1; it must be more than 0.
    """

    max_body: int = 1_000_000  # bytes of a request; more is answered 413
    max_texts: int = 256  # of a request; more is answered 422, as are the next two
    max_characters: int = 100_000  # of a text
    max_tokens: int = 32_768  # of a request, after each text was cut to what the model reads
    max_queue: int = 1024  # texts that wait for the model; a request that finds no room is answered 429
    timeout: float = 30.0  # seconds for a request; later it is answered 504
    batch_tokens: int = 1024  # of a packed batch: larger ones are hardly faster on a CPU, and everyone waits longer
    batch_wait: float = 0.002  # seconds that a batch waits for company, where the one before had some
    stall: float = 60.0  # seconds without a sign of the worker after which /healthz fails

    def __post_init__(self) -> None:
        wrong = []
        for field in fields(self):
            value, whole = getattr(self, field.name), field.type is int
            least = "at least 1" if whole else "at least 0" if field.name == "batch_wait" else "more than 0"
            if not (value >= 1 if whole else value >= 0 if field.name == "batch_wait" else value > 0):
                wrong.append(f"{field.name} is {value}; it must be {least}.")
        if not wrong and self.max_queue < self.max_texts:
            wrong.append(
                f"max_queue is {self.max_queue} and max_texts {self.max_texts}: a whole request must fit in the queue."
            )
        if wrong:
            raise EbmcalError(" ".join(wrong))
