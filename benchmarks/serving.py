"""Throughput and latency of `ebmcal serve`, compared with other servers of the same weights.

These are a plain FastAPI + `transformers.pipeline` server, and `ebmcal serve` without batching (one text per batch).

    python benchmarks/serving.py                       # about five minutes
    python benchmarks/serving.py --seconds 5 --rounds 1

MiniLM with a new head; texts with the lengths of SST-2 (its phrases with --texts SST-2/train.tsv). Each client keeps
one connection and sends its next text when it has the answer. All servers keep running; one at a time is under load.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

LOADS = (1, 8, 64)
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


def wait_until_ready(port: int, process: subprocess.Popen, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the server on port {port} did not become ready")


async def exchange(reader, writer, text: str) -> int:
    """Send a text on an open connection and read the response; its status."""
    body = json.dumps({"inputs": text}).encode()
    head = "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
    return int(head.split(b" ", 2)[1])


async def load(port: int, texts: list[str], n_clients: int, seconds: float) -> tuple[list[float], int]:
    """Seconds of every answered request, and the number of failed ones."""
    times, n_failed, end = [], 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal n_failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        i = number
        while (start := time.perf_counter()) < end:
            if await exchange(reader, writer, texts[i % len(texts)]) == 200:
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
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers too
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
    options.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
