"""Requests drawn from the server's OpenAPI document: never a 5xx, always a documented response."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, given, settings
from server_tools import running, save_classifier

import ebmcal
from ebmcal.serving import Limits, create_app

LIMITS = Limits(max_texts=8, max_characters=200)  # bodies stay below max_body: schemathesis takes a 413 for an error
ROUTES = [("/v1/classify", "post"), ("/v1/models", "get"), ("/healthz", "get"), ("/readyz", "get"), ("/metrics", "get")]
VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    model = ebmcal.load(save_classifier(tmp_path_factory.mktemp("fuzz") / "films"))
    with running(create_app({"films": model}, limits=LIMITS)) as app:
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


def test_every_route_is_documented(api):
    assert {(o.ok().path, o.ok().method) for o in api.get_all_operations()} == set(ROUTES)


@pytest.mark.parametrize(("path", "method", "mode"), [(*ROUTES[0], INVALID), *((*route, VALID) for route in ROUTES)])
def test_responses_are_as_documented(api, path, method, mode):
    """What fits the document is answered, what does not is refused."""
    n_examples, cases = 40 if method == "post" else 5, api[path][method].as_strategy(generation_mode=mode)

    @given(case=cases)
    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def check(case):
        assert case.call_and_validate().status_code < 500

    check()
