"""What the tests of the server share: small classifiers, an app that runs in this process, and calls to it."""

import asyncio
import contextlib
import time

import httpx2
import numpy as np

from ebmcal.calibrators import TemperatureScaling
from tiny_models import save_encoder

NAMES = ("bad", "fair", "good")


def save_classifier(folder, names=NAMES):
    """A tiny classifier whose classes have names, as transformers saves it."""
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    return save_encoder(folder, **labels)


def fitted_temperature():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3))
    return TemperatureScaling().fit(3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))


@contextlib.contextmanager
def running(app, wait=True):
    """The workers of an app, started as its lifespan does; with `wait`, until the models have answered."""
    service = app.state.service
    service.start()
    try:
        while wait and any(batcher.n_waiting for batcher in service.batchers.values()):
            time.sleep(0.005)
        yield app
    finally:
        service.stop()


def call(app, method, path, many=None, **options):
    """The answer to a request; with `many`, a list of options, the answers to that many at once."""

    async def send():
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            wanted = [options] if many is None else many
            return await asyncio.gather(*(client.request(method, path, **one) for one in wanted))

    answers = asyncio.run(send())
    return answers[0] if many is None else answers
