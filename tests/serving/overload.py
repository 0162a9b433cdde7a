"""A server under overload: every request gets a correct answer, 429 or 503, and memory stays flat.

    PYTHONPATH=tests:tests/serving python tests/serving/overload.py --minutes 10

Clients ignore Retry-After, so that more is requested than can be answered; some texts are very long; slow clients send
half a header or their body a byte at a time. The quick version is a test.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from server_tools import save_classifier

import ebmcal
from tiny_models import SENTENCES

MAX_QUEUE = 16
N_CLIENTS = 48
N_SLOW = 20
TEXTS = [*SENTENCES, *(f"{text} " * 2000 for text in SENTENCES[:20])]


def overload(folder, seconds, texts=TEXTS, report=print):
    """Statuses, number of wrong answers, requests per answer, and megabytes at four moments."""
    expected = ebmcal.load(folder).predict(texts).probs
    command = [sys.executable, "-m", "ebmcal", "serve", str(folder), "--port", "0", "--max-queue", str(MAX_QUEUE)]
    command += ["--max-texts", "1", "--batch-tokens", "64", "--header-timeout", "2", "--timeout", "10"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            port = _port(log, process)
            return asyncio.run(_load(port, process.pid, seconds, texts, expected, report))
        finally:
            process.terminate()
            process.wait(60)


def _port(log, process):
    for _ in range(3000):
        log.seek(0)
        found = re.search(r"at http://127\.0\.0\.1:(\d+)", log.read())
        if found:
            return int(found.group(1))
        assert process.poll() is None, "the server ended"
        time.sleep(0.1)
    raise AssertionError("the server did not start")


async def _load(port, pid, seconds, texts, expected, report):
    statuses, wrong, memory = Counter(), [], []
    (await _connect(port))[1].close()
    start = time.monotonic()

    async def client(number):
        reader, writer = await _connect(port)
        for i in range(number, 10**9, N_CLIENTS):
            if time.monotonic() - start > seconds:
                break
            status, body = await classify(reader, writer, texts[i % len(texts)])
            statuses[status] += 1
            if status == 200:
                got = body["results"][0]["probabilities"].values()
                if max(abs(a - b) for a, b in zip(got, expected[i % len(texts)], strict=True)) > 1e-4:
                    wrong.append(texts[i % len(texts)])
            else:
                await asyncio.sleep(0.02)
        writer.close()

    async def slow_client(number):
        headers = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\n"
        body = b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        while time.monotonic() - start < seconds:
            reader, writer = await _connect(port)
            with contextlib.suppress(ConnectionError):
                writer.write(headers + body * (number % 2))
                while time.monotonic() - start < seconds and not reader.at_eof():
                    writer.write(b" " * (number % 2))
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.2)
            writer.close()

    async def sample():
        for share in (0.25, 0.5, 0.75, 0.98):
            await asyncio.sleep(max(0.0, share * seconds - (time.monotonic() - start)))
            memory.append(_megabytes(pid))
            report(f"{share:.0%}: {dict(statuses)}, {len(wrong)} wrong, {memory[-1]:.0f} MB")

    slow = [slow_client(i) for i in range(N_SLOW)]
    await asyncio.gather(sample(), *slow, *(client(i) for i in range(N_CLIENTS)))
    ratio = sum(statuses.values()) / max(statuses[200], 1)
    return {"statuses": dict(statuses), "wrong": len(wrong), "requests_per_answer": round(ratio, 2), "mb": memory}


async def _connect(port):
    for _ in range(600):
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
    raise AssertionError("nothing listens")


async def classify(reader, writer, text):
    """Status and body of the response to a request on an open connection."""
    body = json.dumps({"inputs": text}).encode()
    head = f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(re.search(r"content-length: (\d+)", head).group(1))
    status = int(head.split(" ", 2)[1])
    assert status != 429 or "retry-after" in head
    return status, json.loads(await reader.readexactly(length))


def _megabytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(overload(save_classifier(Path(scratch) / "films"), 60 * parser.parse_args().minutes)))
