"""Limits on connections: half-sent headers, too many connections, slow readers, the log. A plain app, no model."""

import asyncio
import contextlib
import logging
import resource
import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from ebmcal.serving import Limits
from ebmcal.serving.server import RateLimit, descriptor_limit, limited_protocol

WAIT = 20  # seconds after which a test fails
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope, receive, send):
    """/slow answers after a second, /large with 50 MB, anything else at once."""
    assert scope["type"] == "http"
    await asyncio.sleep(1 if scope["path"] == "/slow" else 0)
    body = b"x" * (50_000_000 if scope["path"] == "/large" else 2)
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for start in range(0, len(body), 1_000_000):
        part = body[start : start + 1_000_000]
        await send({"type": "http.response.body", "body": part, "more_body": start + len(part) < len(body)})


@contextlib.contextmanager
def running(max_connections=100, **limits):
    """The port of a server in a thread."""
    protocol = limited_protocol(Limits(**limits), max_connections)
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, timeout_keep_alive=1))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(WAIT)


def connect(port, sent=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
    connection.sendall(sent)
    return connection


def status(port, path="/"):
    """The status of a request; None if the connection was closed without a response."""
    request = GET.replace(b"/ ", path.encode() + b" ", 1)
    with connect(port, request) as connection, contextlib.suppress(ConnectionError):
        head = connection.recv(100)
        return int(head.split(b" ")[1]) if head else None


def is_closed(connection):
    """Whether the server closes the connection before the test gives up."""
    try:
        while connection.recv(10_000):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", GET + b"GET / HT", GET + b"\r\n"])
def test_incomplete_headers_time_out(sent):
    """Also those of a further request, and an empty line after a response."""
    with running(header_timeout=0.5) as port, connect(port, sent) as connection:
        start = time.monotonic()
        assert is_closed(connection)
        assert 0.3 < time.monotonic() - start < 5


LAST_CHUNK = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"X: a\r\n"),
        (LAST_CHUNK, b"X: a\r\n"),
        (LAST_CHUNK + b"X: ", b"a"),
    ],
    ids=["URL", "header", "headers", "trailers", "trailer"],
)
def test_endless_headers_are_refused(start, part):
    """Without a bound, they would fill the memory before they time out."""
    with running(header_timeout=WAIT) as port, connect(port, start) as connection:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 50_000_000:
                sent += connection.send(part * (100_000 // len(part)))
        assert sent < 20_000_000  # what the buffers of the system hold
        assert status(port) == 200


def test_a_body_in_tiny_chunks_and_requests_that_follow_are_no_long_headers():
    request = GET.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n").replace(b"GET", b"POST")
    with running() as port, connect(port) as connection:
        for _ in range(3):
            connection.sendall(request + b"1\r\na\r\n" * 30_000 + b"0\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            while not connection.recv(1000).endswith(b"xx"):
                pass


def test_half_sent_headers_do_not_block_other_clients():
    """Three times as many as are allowed: the oldest make room."""
    with running(max_connections=20, header_timeout=60) as port, contextlib.ExitStack() as stack:
        half = [stack.enter_context(connect(port, b"GET / HTTP/1.1\r\nHost: ")) for _ in range(60)]
        assert [status(port) for _ in range(5)] == [200] * 5
        assert is_closed(half[0])
        half[-1].sendall(b"x\r\n\r\n")
        assert half[-1].recv(12) == b"HTTP/1.1 200"


def test_idle_keep_alive_connections_make_room():
    with running(max_connections=5) as port, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(port, GET)) for _ in range(5)]
        assert all(connection.recv(100).startswith(b"HTTP/1.1 200") for connection in idle)
        assert [status(port) for _ in range(5)] == [200] * 5


def test_a_new_connection_is_refused_while_all_others_are_served():
    """A slow response is not a header timeout."""
    with running(max_connections=3, header_timeout=0.5) as port, contextlib.ExitStack() as stack:
        busy = [stack.enter_context(connect(port, GET.replace(b"/ ", b"/slow ", 1))) for _ in range(3)]
        time.sleep(0.3)
        with connect(port) as refused:
            response = refused.recv(1000)
        assert response.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in response
        assert b"Too many connections" in response
        assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in busy)
        assert status(port) == 200


def test_a_client_that_does_not_read_is_disconnected():
    with running(timeout=0.5) as port, connect(port, GET.replace(b"/ ", b"/large ", 1)) as connection:
        time.sleep(1.5)
        total = 0
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1_000_000):
                total += len(part)
        assert total < 50_000_000


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected", "raised"),
    [
        (20_000, 20_000, 4096, 4096, None),
        (1024, 1024, 4096, 768, 1024),
        (1024, 100_000, 4096, 4096, 4352),
        (256, 256, 4096, 128, 256),
        (1024, resource.RLIM_INFINITY, 4096, 4096, 4352),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, 4096, None),
    ],
)
def test_the_limit_is_below_that_of_file_descriptors(monkeypatch, soft, hard, wanted, expected, raised):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: calls.append(limits[0]))
    assert descriptor_limit(wanted) == expected
    assert calls == ([] if raised is None else [raised])


def test_log_messages_of_each_kind_are_limited_and_the_dropped_ones_counted():
    """A flood of one message does not hide another."""
    limit = RateLimit(per_second=2)

    def passed(second, line=0, n=100):
        records = [logging.LogRecord("a", logging.INFO, "", line, "message %d", (i,), None) for i in range(n)]
        for record in records:
            record.created = second + 0.5
        return [record.getMessage() for record in records if limit.filter(record)]

    assert passed(1) == ["message 0", "message 1"]
    assert passed(2) == ["message 0 (98 such messages before it were dropped)", "message 1"]
    assert passed(2, line=1, n=1) == ["message 0"]
