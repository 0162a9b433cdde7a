"""A name of the hub: said before it is fetched, and refused within seconds where nothing answers."""

import http.server
import socket
import threading
import time

import pytest
from huggingface_hub import constants

from ebmcal.errors import EbmcalError
from ebmcal.model import load
from ebmcal.models import hub
from ebmcal.models.loading import check_encoder, check_language_model

NAME = "nobody/no-such-model"


@pytest.fixture
def endpoint(monkeypatch):
    """Makes an address the hub's, with the network allowed."""

    def use(address):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        return address

    return use


@pytest.fixture
def nobody(endpoint):
    """An address where nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening: refused at once
        yield endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize(("look", "kind"), [(check_encoder, "encoder"), (check_language_model, "language model")])
def test_a_hub_out_of_reach_is_said_within_seconds(look, kind, nobody):
    said, start = [], time.monotonic()
    with pytest.raises(EbmcalError, match=f"The {kind} '{NAME}' .* {nobody} cannot be reached .*use a built-in one"):
        look(NAME, say=said.append)
    assert time.monotonic() - start < 5
    assert said == [f"fetching {NAME} from {nobody} (once; kept in {constants.HF_HUB_CACHE})"]


def test_so_it_is_for_a_model(nobody, capsys):
    with pytest.raises(EbmcalError, match=f"{nobody} cannot be reached"):
        load(NAME, progress=True)
    assert f"fetching {NAME}" in capsys.readouterr().err
    with pytest.raises(EbmcalError):
        load(NAME)
    assert not capsys.readouterr().err


class Refuses(http.server.BaseHTTPRequestHandler):
    """Knows no model."""

    def do_HEAD(self):
        self.server.asked.append(self.path)
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_hub_that_answers_is_asked_once(endpoint):
    with http.server.HTTPServer(("127.0.0.1", 0), Refuses) as server:
        server.asked = []
        endpoint(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub.ask_hub(NAME)  # what is wrong is said by those who fetch
        server.shutdown()
    assert server.asked == [f"/{NAME}/resolve/main/config.json"]


def test_offline_and_for_what_is_here_nobody_is_asked(nobody, monkeypatch):
    said = []
    with monkeypatch.context() as here:
        here.setattr(hub, "try_to_load_from_cache", lambda name, file: "somewhere/config.json")
        hub.ask_hub(NAME, said.append)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.ask_hub(NAME, said.append)
    assert said == []
