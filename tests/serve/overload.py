"""A server held over its capacity: every request is answered rightly or gets 429, and memory stays flat.

    PYTHONPATH=tests python tests/serve/overload.py --minutes 10

Clients do not heed Retry-After: they come again after a moment, so that more is always asked than can be answered. The
ratio of requests to answers is counted and said. The quick version is a test of the suite.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ebmcal.model import load
from serving import save_classifier
from tiny_models import SENTENCES

QUEUE = 16
CLIENTS = 48


def overload(folder, seconds, texts=SENTENCES, say=print):
    """Statuses, wrong answers, requests for each answer, and megabytes at a quarter and at the end."""
    expected = load(folder).predict(texts).probs
    command = [sys.executable, "-m", "ebmcal", "serve", str(folder), "--port", "0"]
    command += ["--max-queue", str(QUEUE), "--max-texts", "1", "--batch-tokens", "64"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            port = _port(log, process)
            return asyncio.run(_hold(port, process.pid, seconds, texts, expected, say))
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


async def _hold(port, pid, seconds, texts, expected, say):
    statuses, wrong, memory, begin = Counter(), [], [], time.monotonic()

    async def client(number):
        reader, writer = await _connect(port)
        for i in range(number, 10**9, CLIENTS):
            if time.monotonic() - begin > seconds:
                break
            status, body = await _classify(reader, writer, texts[i % len(texts)])
            statuses[status] += 1
            if status == 200:
                got = body["results"][0]["probabilities"].values()
                if max(abs(a - b) for a, b in zip(got, expected[i % len(texts)], strict=True)) > 1e-4:
                    wrong.append(texts[i % len(texts)])
            else:
                await asyncio.sleep(0.02)
        writer.close()

    async def watch():
        for share in (0.25, 0.5, 0.75, 0.98):
            await asyncio.sleep(max(0.0, share * seconds - (time.monotonic() - begin)))
            memory.append(_megabytes(pid))
            say(f"{share:.0%}: {dict(statuses)}, {len(wrong)} wrong, {memory[-1]:.0f} MB")

    await asyncio.gather(watch(), *(client(i) for i in range(CLIENTS)))
    asked = sum(statuses.values()) / max(statuses[200], 1)
    return {"statuses": dict(statuses), "wrong": len(wrong), "asked_for_each_answer": round(asked, 2), "mb": memory}


async def _connect(port):
    for _ in range(600):
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
    raise AssertionError("nobody listens")


async def _classify(reader, writer, text):
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
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(overload(save_classifier(Path(place) / "films"), 60 * parser.parse_args().minutes)))
