"""Throughput and latency of `ebmcal serve`, compared with other servers of the same weights.

These are a plain FastAPI + `transformers.pipeline` server, and `ebmcal serve` without batching (one text per batch).

    python benchmarks/serving.py                       # about five minutes
    python benchmarks/serving.py --seconds 5 --rounds 1
    python benchmarks/serving.py --overload            # ten minutes; writes overload.json

MiniLM with a new head; texts with the lengths of SST-2 (its phrases with --texts SST-2/train.tsv). Each client keeps
one connection and sends its next text when it has the answer. All servers keep running; one at a time is under load.

Under overload, twice as many requests arrive as the server can answer, one text in twenty is very long, and slow
clients send half a header or a body a byte at a time. Every request must get a correct answer, 429 or 503; memory stays
flat.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np

LOADS = (1, 8, 64)
N_CLIENTS, N_SLOW = 200, 20  # under overload
GOALS = {("plain pipeline", 1): 1.0, ("plain pipeline", 64): 4.0}

PLAIN = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

classify = pipeline("text-classification", model=sys.argv[1], top_k=None)
app = FastAPI()

class Body(BaseModel):
    inputs: str

@app.post("/v1/classify")
def answer(body: Body):
    return classify(body.inputs)

@app.get("/readyz")
def ready():
    return classify("Is this a test?")

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


def commands(model: Path) -> dict[str, list[str]]:
    """Server → its command, without the port at the end."""
    ours = [sys.executable, "-m", "ebmcal", "serve", str(model)]
    return {
        "plain pipeline": [sys.executable, "-c", PLAIN, str(model)],
        "no batching": [*ours, "--batch-tokens", "1", "--port"],
        "ebmcal serve": [*ours, "--port"],
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_until_ready(port: int, process: subprocess.Popen, seconds: float = 900.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the server on port {port} did not become ready")


async def exchange(reader, writer, text: str) -> tuple[int, bytes]:
    """Send a text on an open connection and read the response: its status and body."""
    body = json.dumps({"inputs": text}).encode()
    head = "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
    return int(head.split(b" ", 2)[1]), body


async def load(port: int, texts: list[str], n_clients: int, seconds: float) -> tuple[list[float], int]:
    """Seconds of every answered request, and the number of failed ones."""
    times, n_failed, end = [], 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal n_failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        i = number
        while (start := time.perf_counter()) < end:
            if (await exchange(reader, writer, texts[i % len(texts)]))[0] == 200:
                times.append(time.perf_counter() - start)
            else:
                n_failed += 1
            i += n_clients
        writer.close()

    await asyncio.gather(*(client(i) for i in range(n_clients)))
    return times, n_failed


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, pid: int, texts: list[str], n_clients: int, seconds: float) -> dict:
    cpu, start = cpu_seconds(pid), time.perf_counter()
    times, n_failed = asyncio.run(load(port, texts, n_clients, seconds))
    seconds = time.perf_counter() - start
    return {"times": times, "rate": len(times) / seconds, "failed": n_failed, "cpu": cpu_seconds(pid) - cpu}


def summarize(rounds: list[dict]) -> dict:
    times = np.concatenate([one["times"] for one in rounds])
    p50, p95, p99 = (round(1000 * float(q), 1) for q in np.percentile(times, [50, 95, 99]))
    return {
        "requests_per_second": round(float(np.median([one["rate"] for one in rounds])), 2),
        "of_each_round": [round(one["rate"], 2) for one in rounds],
        "p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "n": len(times), "failed": sum(one["failed"] for one in rounds),
        "server_cpu_ms": round(1000 * sum(one["cpu"] for one in rounds) / len(times), 2),
    }  # fmt: skip


def compare(n_clients: int, found: dict[str, dict], reference: str) -> dict:
    ours, theirs = found["ebmcal serve"], found[reference]
    ratios = [a / b for a, b in zip(ours["of_each_round"], theirs["of_each_round"], strict=True)]
    name = f"requests/s, {n_clients} client{'s' if n_clients > 1 else ''}, relative to {reference}"
    return {
        "name": name, "ratio": round(float(np.median(ratios)), 2), "goal": GOALS.get((reference, n_clients)),
        "reference": reference, "ratio_of_each_round": [round(r, 2) for r in ratios],
        "ratio_of_cpu": round(theirs["server_cpu_ms"] / ours["server_cpu_ms"], 2), "ours": ours, "theirs": theirs,
    }  # fmt: skip


async def overload(port: int, pid: int, texts: list[str], expected: np.ndarray, rate: float, seconds: float) -> dict:
    """What happens to `rate` requests per second, sent whether or not earlier ones were answered."""
    statuses, times, memory, n_wrong, n_slow = Counter(), [], [], 0, 0
    start = time.perf_counter()
    end = start + seconds

    async def client(number: int) -> None:
        nonlocal n_wrong
        due = start + number / rate
        while due < end:
            await asyncio.sleep(due - time.perf_counter())
            i = sum(statuses.values()) % len(texts)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status, body = await exchange(reader, writer, texts[i])
            writer.close()
            statuses[status] += 1
            if status == 200:
                times.append(time.perf_counter() - due)
                probs = list(json.loads(body)["results"][0]["probabilities"].values())
                n_wrong += not np.allclose(probs, expected[i], atol=1e-4)
            due = max(due + N_CLIENTS / rate, time.perf_counter())

    async def slow_client(number: int) -> None:
        nonlocal n_slow
        start = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n"
        has_body = number % 2
        if has_body:
            start += b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        while time.perf_counter() < end:
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                n_slow += 1
                writer.write(start)
                while time.perf_counter() < end and not reader.at_eof():
                    writer.write(b" " * has_body)
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(reader.read(1000), 0.2)
                writer.close()

    async def watch() -> None:
        for tenth in range(1, 11):
            await asyncio.sleep(max(0.0, start + 0.099 * tenth * seconds - time.perf_counter()))
            status = Path(f"/proc/{pid}/status").read_text()
            memory.append(round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1))
            print(f"{tenth}0%: {dict(statuses)}, {n_wrong} wrong, {memory[-1]} MB", flush=True)

    await asyncio.gather(watch(), *map(slow_client, range(N_SLOW)), *map(client, range(N_CLIENTS)))
    p50, p99 = (round(float(q), 2) for q in np.percentile(times, [50, 99]))
    return {
        "answered": statuses.pop(200, 0), "refused": {str(k): n for k, n in sorted(statuses.items())},
        "wrong": n_wrong, "slow_connections": n_slow, "p50_s": p50, "p99_s": p99, "mb": memory,
    }  # fmt: skip


def run_overload(minutes: float, threads: int, output: Path) -> None:
    """Measure the capacity for a tenth of the time, then send twice as much."""
    texts = read_texts(None, 200)
    for i in range(0, len(texts), 20):
        texts[i] = f"{texts[i]} " * (20_000 // (len(texts[i]) + 1))
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))
        (Path(scratch) / "ebmcal.json").write_text('{"max_length": 128}')
        import ebmcal

        expected, port = ebmcal.load(scratch).predict(texts).probs, free_port()
        command = [*commands(Path(scratch))["ebmcal serve"], str(port), "--max-queue", "32", "--max-texts", "32"]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        try:
            wait_until_ready(port, process)
            capacity = measure(port, process.pid, texts, 32, 6 * minutes)["rate"]
            print(f"capacity: {capacity:.1f} requests/s", flush=True)
            found = asyncio.run(overload(port, process.pid, texts, expected, 2 * capacity, 60 * minutes))
        finally:
            process.terminate()
            process.wait(60)
    about = {"minutes": minutes, "capacity_per_second": round(capacity, 1), "sent_per_second": round(2 * capacity, 1)}
    output.write_text(json.dumps(about | found, indent=1) + "\n")


def read_texts(path: Path | None, n: int = 2000) -> list[str]:
    """Phrases of SST-2, or random words with such lengths."""
    rng = np.random.default_rng(0)
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        return [lines[i].split("\t")[0].strip() for i in rng.choice(len(lines), n, replace=False)]
    words = ["the", "a", "film", "story", "and", "of", "is", "never", "feels", "dull", "honest", "joy", "slow", "new"]
    lengths = np.clip(np.round(np.exp(rng.normal(np.log(11) - 0.3, 0.7, size=n))), 1, 58).astype(int)
    return [" ".join(rng.choice(words, size=length)) for length in lengths]


def save_model(folder: Path) -> None:
    import torch

    from ebmcal.modeling.pretrained import load_encoder, load_tokenizer

    torch.manual_seed(0)
    load_encoder("minilm", ("negative", "positive"), pooling="first").save_pretrained(folder)
    load_tokenizer("minilm").save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--texts", type=Path, help="SST-2's train.tsv")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--overload", action="store_true", help="Measure what happens under overload instead.")
    parser.add_argument("--minutes", type=float, default=10, help="of the overload")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers too
    if options.overload:
        output = options.output or Path(__file__).with_name("overload.json")
        return run_overload(options.minutes, options.threads, output)
    texts, rows, running = read_texts(options.texts), [], {}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))
        try:
            for name, command in commands(Path(scratch)).items():
                port, environment = free_port(), os.environ | {"OMP_NUM_THREADS": str(options.threads)}
                process = subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL, env=environment)
                running[name] = (port, process)
            for port, process in running.values():
                wait_until_ready(port, process)
                measure(port, process.pid, texts, 8, 1.0)  # warm-up
            for n_clients in LOADS:
                before, rounds = os.getloadavg()[0], {name: [] for name in running}
                for _ in range(options.rounds):
                    for name, (port, process) in running.items():
                        rounds[name].append(measure(port, process.pid, texts, n_clients, options.seconds))
                found = {name: summarize(each) for name, each in rounds.items()}
                loads = [round(before, 1), round(os.getloadavg()[0], 1)]  # before and after
                machine = {"cores": os.cpu_count(), "threads": options.threads, "load": loads}
                for reference in ("plain pipeline", "no batching"):
                    rows.append(compare(n_clients, found, reference) | {"machine": machine})
                    row = rows[-1]
                    print(f"{row['name']:52} {row['ratio']:6.2f}  by CPU {row['ratio_of_cpu']:.2f}  goal {row['goal']}")
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait(60)
    (options.output or Path(__file__).with_suffix(".json")).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
