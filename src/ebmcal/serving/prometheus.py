"""Prometheus metrics at `/metrics`: requests, batches, the queue, and predictions by label. Never any text.

The shares of labels, abstentions and out-of-distribution texts are included so that drift shows on existing dashboards.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ebmcal.serving.batcher import BatchStats

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """The metrics of one server, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ebmcal_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"ebmcal_{name}", text, (label,), buckets=buckets, registry=self.registry)

        self._requests = counter("requests", "Requests by path and status.", "path", "status")
        self._seconds = histogram("request_seconds", "Duration of requests.", "path", SECONDS)
        self._batch_texts = histogram("batch_texts", "Texts per batch.", "model", TEXTS)
        self._batch_seconds = histogram("batch_seconds", "Duration of batches.", "model", SECONDS)
        self._tokens = counter("tokens", "Tokens processed.", "model")
        self._predicted = counter("predicted", "Texts by predicted label.", "model", "label")
        self._abstained = counter("abstained", "Texts the abstention rule abstained on.", "model")
        self._ood = counter("out_of_distribution", "Texts classified as out-of-distribution.", "model")
        self._log_rows = counter("log_rows", "Rows of the answer log, written or dropped.", "outcome")
        self._queue = Gauge("ebmcal_queue_texts", "Texts waiting for the model.", ("model",), registry=self.registry)

    def add_log_rows(self, outcome: str, n_rows: int) -> None:
        """Count rows of the answer log, "written" or "dropped"."""
        self._log_rows.labels(outcome).inc(n_rows)

    def track_queue(self, model: str, n_waiting: Callable[[], float]) -> None:
        """Read the queue length of a model whenever the metrics are read."""
        self._queue.labels(model).set_function(n_waiting)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def add_batch(self, model: str, stats: BatchStats) -> None:
        """Count a finished batch and its predictions."""
        self._batch_texts.labels(model).observe(len(stats.results))
        self._batch_seconds.labels(model).observe(stats.seconds)
        self._tokens.labels(model).inc(stats.n_tokens)
        for answer in stats.results:
            if isinstance(answer, dict):
                self._predicted.labels(model, answer["label"]).inc()
                self._abstained.labels(model).inc(answer["decision"] == "abstain")
                self._ood.labels(model).inc(bool(answer["ood"]))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
