"""Throughput and latency of `ebmcal serve`, in turns with other servers of the same weights.

They are a plain FastAPI + `transformers.pipeline` server, and `ebmcal serve` with batching off (one text a batch).

    python benchmarks/serving.py                       # some five minutes
    python benchmarks/serving.py --seconds 5 --rounds 1

MiniLM with a fresh head; texts with the lengths of SST-2 (its phrases with --texts SST-2/train.tsv). Each client keeps
one connection and sends its next text when it has the answer. All servers stay up, one at a time is under load.
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
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LOADS = (1, 8, 64)

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
    return classify("Are you there?")

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


def commands(model: Path) -> dict[str, list[str]]:
    """Server → its command, without the port at the end."""
    ours = [sys.executable, "-m", "ebmcal", "serve", str(model)]
    return {
        "plain pipeline": [sys.executable, "-c", PLAIN, str(model)],
        "batching off": [*ours, "--batch-tokens", "1", "--port"],
        "ebmcal serve": [*ours, "--port"],
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        return place.getsockname()[1]


async def exchange(reader, writer, message: bytes) -> int:
    """Send a request on a kept connection and read its answer; the status."""
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1])


def request(text: str) -> bytes:
    body = json.dumps({"inputs": text}).encode()
    head = "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def load(port: int, texts: list[str], n_clients: int, seconds: float) -> tuple[list[float], list[int]]:
    """Seconds and status of every request that was answered in time."""
    times, statuses, end = [], [], time.perf_counter() + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in range(number, 10**9, n_clients):
            start = time.perf_counter()
            if start >= end:
                break
            status = await exchange(reader, writer, request(texts[i % len(texts)]))
            times.append(time.perf_counter() - start)
            statuses.append(status)
        writer.close()

    await asyncio.gather(*(client(i) for i in range(n_clients)))
    return times, statuses


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, pid: int, texts: list[str], n_clients: int, seconds: float) -> dict:
    before, start = cpu_seconds(pid), time.perf_counter()
    times, statuses = asyncio.run(load(port, texts, n_clients, seconds))
    taken = time.perf_counter() - start
    good = [t for t, status in zip(times, statuses, strict=True) if status == 200]
    return {"times": good, "seconds": taken, "failed": len(times) - len(good), "cpu": cpu_seconds(pid) - before}


def summary(turns: list[dict]) -> dict:
    times = np.concatenate([turn["times"] for turn in turns])
    p50, p95, p99 = (round(1000 * float(q), 1) for q in np.percentile(times, [50, 95, 99]))
    each = [len(turn["times"]) / turn["seconds"] for turn in turns]
    return {
        "requests_per_second": round(float(np.median(each)), 2), "of_each_turn": [round(r, 2) for r in each],
        "p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "n": len(times), "failed": sum(t["failed"] for t in turns),
        "server_cpu_ms": round(1000 * sum(t["cpu"] for t in turns) / len(times), 2),
    }  # fmt: skip


def phrases(path: Path | None, n: int = 2000) -> list[str]:
    """Phrases of SST-2, or words in phrases of such lengths where the file is not at hand."""
    rng = np.random.default_rng(0)
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        return [lines[i].split("\t")[0].strip() for i in rng.choice(len(lines), n, replace=False)]
    words = ["the", "a", "film", "story", "and", "of", "is", "never", "feels", "dull", "honest", "joy", "slow", "new"]
    lengths = np.clip(np.round(np.exp(rng.normal(np.log(11) - 0.3, 0.7, size=n))), 1, 58).astype(int)
    return [" ".join(rng.choice(words, size=length)) for length in lengths]


def save_model(folder: Path) -> None:
    import torch

    from ebmcal.models.loading import load_encoder, load_tokenizer

    torch.manual_seed(0)
    load_encoder("minilm", ("negative", "positive")).save_pretrained(folder)
    load_tokenizer("minilm").save_pretrained(folder)


def wait_ready(port: int, process: subprocess.Popen, most: float = 300.0) -> None:
    import urllib.request

    end = time.monotonic() + most
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the server at {port} did not become ready")


def row(n_clients: int, found: dict[str, dict], reference: str, goal: float | None) -> dict:
    ours = found["ebmcal serve"]
    theirs = found[reference]
    ratios = [a / b for a, b in zip(ours["of_each_turn"], theirs["of_each_turn"], strict=True)]
    name = f"requests/s, {n_clients} client{'s' if n_clients > 1 else ''}, against {reference}"
    return {
        "name": name, "ratio": round(float(np.median(ratios)), 2), "goal": goal, "reference": reference,
        "ratio_of_each_turn": [round(r, 2) for r in ratios],
        "ratio_of_cpu": round(theirs["server_cpu_ms"] / ours["server_cpu_ms"], 2), "ours": ours, "theirs": theirs,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch; on a busy machine several only spin")
    parser.add_argument("--texts", type=Path, help="SST-2's train.tsv")
    parser.add_argument("--output", type=Path, default=HERE / "serving.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with it
    texts, rows, running = phrases(options.texts), [], {}
    with tempfile.TemporaryDirectory() as scratch:
        save_model(Path(scratch))
        try:
            for name, command in commands(Path(scratch)).items():
                port = free_port()
                environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
                process = subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL, env=environment)
                running[name] = (port, process)
            for port, process in running.values():
                wait_ready(port, process)
                measure(port, process.pid, texts, 8, 1.0)  # warm-up
            for n_clients in LOADS:
                before, turns = os.getloadavg()[0], {name: [] for name in running}
                for _ in range(options.rounds):
                    for name, (port, process) in running.items():
                        turns[name].append(measure(port, process.pid, texts, n_clients, options.seconds))
                found = {name: summary(each) for name, each in turns.items()}
                for name, figures in found.items():
                    print(f"{n_clients:3} clients  {name:15} {figures}", flush=True)
                loads = [round(before, 1), round(os.getloadavg()[0], 1)]  # before and after
                machine = {"cores": os.cpu_count(), "threads": options.threads, "load": loads}
                goals = {"plain pipeline": {1: 1.0, 64: 4.0}.get(n_clients), "batching off": None}
                rows += [row(n_clients, found, name, goal) | {"machine": machine} for name, goal in goals.items()]
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.wait(60)
    for one in rows:
        print(f"{one['name']:48} {one['ratio']:6.2f}  (by CPU {one['ratio_of_cpu']:.2f})  goal {one['goal']}")
    options.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
