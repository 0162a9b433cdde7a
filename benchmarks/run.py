"""All speed benchmarks in one go: prints the tables and gathers the figures in `results.json`.

    make bench

Each script runs in a process of its own and writes its own JSON; here they are only put together.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("metrics", "calibrators", "training")


def main() -> None:
    results = []
    for name in SCRIPTS:
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
        results += [{"script": name, **row} for row in json.loads((HERE / f"{name}.json").read_text())]
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    missed = [row["name"] for row in results if row.get("ratio") is not None and row["ratio"] < (row.get("goal") or 0)]
    print(f"\n{len(results)} figures in {HERE / 'results.json'}; below their goal: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
