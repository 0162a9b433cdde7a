"""All speed benchmarks in one go, half an hour on two idle cores: `make bench`.

Each script runs in its own process, prints its table and writes its own JSON file.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("metrics", "calibrators", "training", "sampling", "serving", "bulk_prediction")


def main() -> None:
    missed = []
    for name in SCRIPTS:
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
        rows = json.loads((HERE / f"{name}.json").read_text())
        rated = [row for row in rows if row.get("ratio") is not None and row.get("goal")]  # a peer may not be installed
        missed += [f"{r['name']} ({r['ratio']:.2f} of {r['goal']})" for r in rated if r["ratio"] < r["goal"]]
    print(f"\nBelow their goal: {'; '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
