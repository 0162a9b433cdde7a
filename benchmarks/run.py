"""All speed benchmarks in one go: prints the tables and gathers the figures in `results.json`.

    make bench                             # half an hour on two idle cores
    python benchmarks/run.py --gather      # only puts together what the scripts have written

Each script runs in a process of its own and writes its own JSON. `profile_step.py` (where the time goes),
`run_memory.py` and `cheaper.py` are experiments of their own.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("metrics", "calibrators", "training", "sampling", "step_memory", "serving")
KEPT = ("name", "ratio", "goal", "reference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gather", action="store_true")
    gather, results = parser.parse_args().gather, []
    for name in SCRIPTS:
        print(f"\n{name}", flush=True)
        if not gather:
            subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)
        rows = json.loads((HERE / f"{name}.json").read_text())
        results += [{key: row.get(key) for key in KEPT} | {"script": name} | row for row in rows]
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    judged = [row for row in results if row["ratio"] is not None and row["goal"]]  # a peer may not be installed
    missed = [f"{row['name']} ({row['ratio']:.2f} of {row['goal']})" for row in judged if row["ratio"] < row["goal"]]
    print(f"\n{len(results)} figures in {HERE / 'results.json'}; below their goal: {'; '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
