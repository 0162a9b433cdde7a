"""`ebmcal serve` as a process: ready, graceful shutdown, restart after SIGKILL, overload, many connections, attacks."""

import asyncio
import contextlib
import http.client
import json
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from server_tools import save_classifier

import ebmcal
from tiny_models import SENTENCES

WAIT = 300  # seconds; the machine may be busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("process") / "films")


class Server:
    """A server process on a port that it chose or was given."""

    def __init__(self, folder, port=0, *flags, max_files=None):
        def limit_files():
            if max_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))

        command = [sys.executable, "-m", "ebmcal", "serve", str(folder), "--port", str(port), *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=limit_files)
        self.lines, self.port = [], None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", line)
            self.port = int(found.group(1)) if found else self.port

    def wait_until_ready(self):
        end = time.monotonic() + WAIT
        while not (self.port and self._is_ready()):
            assert self.process.poll() is None, f"the server ended: {''.join(self.lines)}"
            assert time.monotonic() < end, f"the server is not ready: {''.join(self.lines)}"
            time.sleep(0.1)
        return self

    def _is_ready(self):
        with contextlib.suppress(OSError):
            return self.request("GET", "/readyz")[0] == 200

    def request(self, method, path, body=None, timeout=WAIT):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content) if path != "/metrics" else content.decode()
        finally:
            connection.close()

    def end(self, with_signal=signal.SIGTERM):
        self.process.send_signal(with_signal)
        code = self.process.wait(WAIT)
        self.reader.join(WAIT)
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def serving(*arguments, **options):
    server = Server(*arguments, **options)
    try:
        yield server.wait_until_ready()
    finally:
        code = server.end()
    assert (code, "all accepted requests were answered" in "".join(server.lines)) == (0, True), server.lines[-5:]


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """A server with the web UI that may open few files."""
    other = shutil.copytree(folder, tmp_path_factory.mktemp("other") / folder.name)
    flags = ("--ui", "--baseline", other, "--max-queue", 2048, "--timeout", WAIT)
    with serving(folder, 0, *flags, max_files=512) as server:
        yield server


def until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_correct(body, probs):
    got = body["results"][0]["probabilities"].values()
    return max(abs(a - b) for a, b in zip(got, probs, strict=True)) < 2e-4


@pytest.mark.slow
def test_shutdown_and_restart_under_load(folder):
    """SIGKILL with clients at work, the same port again, then SIGTERM with clients at work: never a wrong answer."""
    texts = SENTENCES[:24]
    expected = ebmcal.load(folder).predict(texts).probs
    stop, outcomes = threading.Event(), []

    def client(number, server):
        while not stop.is_set():
            i = (number + 5 * len(outcomes)) % len(texts)
            try:
                status, body = server().request("POST", "/v1/classify", {"inputs": texts[i]}, timeout=20)
                outcomes.append((status, status != 200 or is_correct(body, expected[i])))
            except (OSError, http.client.HTTPException):
                outcomes.append(("lost", True))
                time.sleep(0.05)

    servers = [Server(folder).wait_until_ready()]
    clients = [threading.Thread(target=client, args=(i, lambda: servers[-1]), daemon=True) for i in range(8)]
    for one in clients:
        one.start()
    until(lambda: outcomes.count((200, True)) > 30)
    assert servers[0].end(signal.SIGKILL) == -signal.SIGKILL
    again = Server(folder, servers[0].port, "--batch-tokens", "64").wait_until_ready()
    servers.append(again)
    before = outcomes.count((200, True))
    until(lambda: outcomes.count((200, True)) > before + 30)
    large, found = {"inputs": [" ".join(SENTENCES[i : i + 8]) for i in range(100)]}, []
    last = threading.Thread(target=lambda: found.append(again.request("POST", "/v1/classify", large)))
    last.start()
    until(lambda: found or n_waiting(again) > 50)
    assert again.end() == 0
    last.join(WAIT)
    assert (found[0][0], len(found[0][1]["results"])) == (200, 100), "it was accepted before the signal"
    assert "all accepted requests were answered" in "".join(again.lines)
    stop.set()
    for one in clients:
        one.join(WAIT)
    assert {status for status, _ in outcomes} <= {200, 503, "lost"}
    assert all(correct for _, correct in outcomes)


def n_waiting(server):
    """The number of texts in the queue."""
    return float(re.search(r"ebmcal_queue_texts{.*} (\S+)", server.request("GET", "/metrics")[1]).group(1))


def test_every_one_of_many_connections_gets_its_own_answer(folder, server):
    n, port = 150, server.port
    texts = [f"{SENTENCES[i % len(SENTENCES)]} {i}" for i in range(n)]
    expected = ebmcal.load(folder).predict(texts).probs

    async def classify(reader, writer, text):
        body = json.dumps({"inputs": text}).encode()
        head = f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(re.search(r"content-length: (\d+)", head).group(1))
        return int(head.split(" ", 2)[1]), json.loads(await reader.readexactly(length))

    async def connect_all():
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(n)]
        found = await asyncio.gather(*(classify(*pair, text) for pair, text in zip(opened, texts, strict=True)))
        for _, writer in opened:
            writer.close()
        return found

    responses = asyncio.run(connect_all())
    assert {status for status, _ in responses} == {200}
    assert all(is_correct(body, probs) for (_, body), probs in zip(responses, expected, strict=True))


def test_half_sent_headers_neither_block_the_server_nor_fill_the_log(server):
    """More connections than file descriptors."""
    time.sleep(1.1)  # messages are limited per second, and the test before this one may have used them up
    n_lines = len(server.lines)
    with contextlib.ExitStack() as stack:
        for _ in range(700):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT))
            connection.sendall(b"POST /v1/classify HTTP/1.1\r\nHost: ")
        assert server.request("GET", "/healthz", timeout=30) == (200, {"status": "ok"})
        assert server.request("POST", "/v1/classify", {"inputs": "a joy"}, timeout=30)[0] == 200
    until(lambda: "the limit of 256 connections is reached" in "".join(server.lines[n_lines:]))
    log = "".join(server.lines[n_lines:])
    assert len(log) < 20_000
    assert "out of system resource" not in log


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_long_texts_need_little_memory_and_do_not_delay_others(server):
    """Within all limits: ten requests with 40 texts of 24,000 characters each."""
    long, pid = {"inputs": ["the film is dull " * 1400] * 40}, server.process.pid
    before = memory_peak(pid)
    clients = [threading.Thread(target=server.request, args=("POST", "/v1/classify", long)) for _ in range(10)]
    for one in clients:
        one.start()
    start = time.monotonic()
    assert server.request("GET", "/healthz")[0] == 200
    delay = time.monotonic() - start
    for one in clients:
        one.join(WAIT)
    assert memory_peak(pid) - before < 120
    assert delay < 5


def test_the_web_ui_is_served_on_request(server):
    status, about = server.request("GET", "/ui/about")
    assert (status, about["models"]) == (200, ["films", "films (2)"])


def memory_peak(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.slow
def test_overload_gives_correct_answers_429_or_503(tmp_path):
    """Also with long texts and slow clients; and memory stays flat."""
    script, output = Path(__file__).parents[2] / "benchmarks" / "serving.py", tmp_path / "overload.json"
    command = [sys.executable, str(script), "--overload", "--minutes", "0.5", "--output", str(output)]
    subprocess.run(command, check=True, timeout=2 * WAIT)
    found = json.loads(output.read_text())
    assert found["answered"] > 0
    assert set(found["refused"]) <= {"429", "503"}
    assert found["wrong"] == 0
    assert found["mb"][-1] < found["mb"][1] + 30


def test_what_is_refused_before_anything_is_served(tmp_path, folder, command):
    assert "is not a model directory" in command("serve", tmp_path / "none", "--port", 0, code=1)
    (tmp_path / "config.json").write_text("{}")
    assert "safetensors" in command("serve", tmp_path, "--port", 0, code=1)
    assert "max_texts must be at least 1, got 0" in command("serve", folder, "--max-texts", 0, code=1)
    assert "--port: expected" in command("serve", folder, "--port", 99999, code=1)
    assert "add --ui" in command("serve", folder, "--baseline", folder, code=1)
    assert "is the served model itself" in command("serve", folder, "--ui", "--baseline", folder, "--port", 0, code=1)
    other = save_classifier(tmp_path / "other", ("x", "y", "z"))
    message = command("serve", folder, "--ui", "--baseline", other, "--port", "0", code=1)
    assert "different labels: bad, fair, good and x, y, z" in message
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Choose another --port" in command("serve", folder, "--port", taken.getsockname()[1], code=1)


@pytest.mark.parametrize("key", [" ", "", "a\nb", " key"])
def test_invalid_keys_are_refused(folder, command, monkeypatch, key):
    monkeypatch.setenv("EBMCAL_API_KEY", key)
    assert "EBMCAL_API_KEY is empty or has" in command("serve", folder, "--port", 0, code=1)
