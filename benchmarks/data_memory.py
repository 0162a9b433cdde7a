"""Peak memory and time of loading a training file by its number of rows.

Each size runs in its own process: the CSV file is converted into the cache, split, audited, and every text is read
once. Private memory is what the process allocated; resident memory also counts pages of the memory-mapped file, which
the system can reclaim at any time.
Run: python benchmarks/data_memory.py [--rows 10000 100000 1000000] [--json FILE]
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WORDS = ["the", "a", "film", "story", "plot", "scene", "is", "was", "not", "very", "dull", "warm", "with", "and", "of"]


def write_rows(path: Path, n: int) -> None:
    """A CSV file of n distinct texts of about 120 characters, three labels."""
    rng = random.Random(n)
    with open(path, "w", encoding="utf-8") as handle:
        handle.write("text,label\n")
        for i in range(n):
            handle.write(f"{i} {' '.join(rng.choices(WORDS, k=24))},{'abc'[i % 3]}\n")


def memory_mb(field: str) -> float:
    """A field of this process's memory status, in MB: RssAnon is private, VmHWM the resident peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) / 1024


class PrivatePeak(threading.Thread):
    """Samples private memory every 5 ms; the kernel keeps a peak of resident memory only."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.done = 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.peak = max(self.peak, memory_mb("RssAnon"))


def measure(path: Path, cache: Path) -> dict:
    """Load the file in this process and read all texts: memory and seconds."""
    from ebmcal.data import DataConfig, load_task

    sampler = PrivatePeak()
    sampler.start()
    start = time.perf_counter()
    task = load_task(DataConfig(train=path, calibration_share=0.1), cache)
    loaded = time.perf_counter() - start
    characters = sum(
        len(text) for split in task.splits.values() for batch in split.iter(1000) for text in batch["text"]
    )
    sampler.done.set()
    sampler.join()
    return {
        "private_peak_mb": round(sampler.peak, 1),
        "resident_peak_mb": round(memory_mb("VmHWM"), 1),
        "load_seconds": round(loaded, 2),
        "characters": characters,
    }


def measure_in_child(n: int, folder: Path) -> dict:
    """Measure one size twice: with an empty cache, then with the cache of the first time."""
    path, cache = folder / f"rows{n}.csv", folder / f"cache{n}"
    write_rows(path, n)
    runs = []
    for _ in range(2):
        command = [sys.executable, __file__, "--child", str(path), str(cache)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(found.stdout))
    return {"rows": n, "file_mb": round(path.stat().st_size / 2**20, 1), "first": runs[0], "again": runs[1]}


def print_table(results: list[dict]) -> None:
    print(f"{'rows':>10} {'file MB':>8} {'private MB':>11} {'resident MB':>12} {'load s':>7} {'load s, cached':>15}")
    for r in results:
        first, again = r["first"], r["again"]
        print(
            f"{r['rows']:>10,} {r['file_mb']:>8} {first['private_peak_mb']:>11} {first['resident_peak_mb']:>12} "
            f"{first['load_seconds']:>7} {again['load_seconds']:>15}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(*arguments.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = [measure_in_child(n, Path(folder)) for n in arguments.rows]
    print_table(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
