"""The server under requests drawn from its own OpenAPI document: never a 5xx, always an answer that it documents."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, given, settings

from ebmcal.model import load
from ebmcal.serve import Limits, create_app
from serving import running, save_classifier

LIMITS = Limits(max_texts=8, max_characters=200)  # 413 is no refusal to schemathesis: bodies stay below its limit
ROUTES = [("/v1/classify", "post"), ("/v1/models", "get"), ("/healthz", "get"), ("/readyz", "get"), ("/metrics", "get")]


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    model = load(save_classifier(tmp_path_factory.mktemp("fuzz") / "films"))
    with running(create_app({"films": model}, limits=LIMITS)) as app:
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


def test_every_route_is_tried(api):
    assert {(o.ok().path, o.ok().method) for o in api.get_all_operations()} == set(ROUTES)


GOOD, BAD = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.mark.parametrize(("path", "method", "mode"), [(*ROUTES[0], BAD), *((*route, GOOD) for route in ROUTES)])
def test_every_answer_is_as_documented(api, path, method, mode):
    """What fits the document is answered, what does not is refused. By hand: its pytest plugin lags behind pytest."""
    n_examples, cases = 40 if method == "post" else 5, api[path][method].as_strategy(generation_mode=mode)

    @given(case=cases)
    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def check(case):
        answer = case.call_and_validate()
        assert answer.status_code < 500

    check()
