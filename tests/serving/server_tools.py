"""Shared by the tests of the server: tiny classifiers, an app that runs in this process, and requests to it."""

import asyncio
import contextlib
import time

import httpx2
import numpy as np

import ebmcal
from ebmcal import TemperatureScaling
from ebmcal.selective import save_rule
from tiny_models import SENTENCES, save_encoder

NAMES = ("bad", "fair", "good")


def save_classifier(folder, names=NAMES, **changes):
    """A tiny classifier with class names, as transformers saves it."""
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    return save_encoder(folder, **labels, **changes)


def fitted_temperature():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3))
    return TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


def fit_rule(folder, is_wrong=lambda rows: np.arange(rows.n_rows) % 9 == 0, **guarantees):
    """Store a rule that was fitted on the model's own predictions as labels, some wrong; returns the loaded model."""
    model = ebmcal.load(folder)
    rows = model.predict(SENTENCES, calibrated=False)
    labels = np.where(is_wrong(rows), (rows.predicted + 1) % 3, rows.predicted)
    save_rule(folder, ebmcal.fit_abstention(rows.replace(labels=labels), model=model, **guarantees))
    return ebmcal.load(folder)


@contextlib.contextmanager
def running(app, wait=True):
    """The workers of an app, as its lifespan starts them; with `wait`, after the models have answered a first text."""
    service = app.state.service
    service.start()
    try:
        while wait and any(batcher.n_waiting for batcher in service.batchers.values()):
            time.sleep(0.005)
        yield app
    finally:
        service.stop()


def call(app, method, path, many=None, **options):
    """The response to a request; with `many`, a list of options, the responses to that many at once."""

    async def send():
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            wanted = [options] if many is None else many
            return await asyncio.gather(*(client.request(method, path, **one) for one in wanted))

    responses = asyncio.run(send())
    return responses[0] if many is None else responses


def classify(app, body, **more):
    return call(app, "POST", "/v1/classify", json=body, **more)
