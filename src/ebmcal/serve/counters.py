"""What Prometheus reads at `/metrics`: requests, texts, batches, the queue, and what the model said.

Shares of labels, abstentions and unusual texts are there so that drift shows where one looks anyway. No text, ever.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ebmcal.serve.batching import BatchFacts

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Counters:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "ebmcal_requests", "Requests by path and status.", ("path", "status"), registry=registry
        )
        self.seconds = Histogram(
            "ebmcal_request_seconds", "Time from request to answer.", ("path",), buckets=SECONDS, registry=registry
        )
        self.batches = Histogram(
            "ebmcal_batch_texts", "Texts in a batch.", ("model",), buckets=TEXTS, registry=registry
        )
        self.batch_seconds = Histogram(
            "ebmcal_batch_seconds", "Time of the model for a batch.", ("model",), buckets=SECONDS, registry=registry
        )
        self.tokens = Counter("ebmcal_tokens", "Tokens that the model read.", ("model",), registry=registry)
        self.labels = Counter("ebmcal_predicted", "Texts by predicted label.", ("model", "label"), registry=registry)
        self.abstained = Counter(
            "ebmcal_abstained", "Texts that the rule gave no answer to.", ("model",), registry=registry
        )
        self.unusual = Counter("ebmcal_unusual", "Texts that the rule called unusual.", ("model",), registry=registry)
        self.log_rows = Counter("ebmcal_log_rows", "Rows of --log, written or lost.", ("outcome",), registry=registry)
        self.waiting = Gauge("ebmcal_queue_texts", "Texts that wait for the model.", ("model",), registry=registry)

    def logged(self, outcome: str, n_rows: int) -> None:
        """Count rows of the log of answers, written or lost."""
        self.log_rows.labels(outcome).inc(n_rows)

    def watch(self, model: str, n_waiting: Callable[[], float]) -> None:
        """Ask for the length of a model's queue whenever somebody reads the figures."""
        self.waiting.labels(model).set_function(n_waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.requests.labels(path, status).inc()
        self.seconds.labels(path).observe(seconds)

    def batch(self, model: str, facts: BatchFacts) -> None:
        """Count a finished batch and what was said in it."""
        self.batches.labels(model).observe(facts.n_texts)
        self.batch_seconds.labels(model).observe(facts.seconds)
        self.tokens.labels(model).inc(facts.n_tokens)
        for answer in facts.answers:
            if isinstance(answer, dict):
                self.labels.labels(model, answer["label"]).inc()
                self.abstained.labels(model).inc(answer["decision"] == "abstain")
                self.unusual.labels(model).inc(bool(answer["unusual"]))

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)
