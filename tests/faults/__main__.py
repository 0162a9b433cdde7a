"""python -m tests.faults: inject faults, print what was survived, write every case.

An interrupted session goes on where it stopped (`--work` holds the cases done); `--only KEY` repeats one case.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .corruptions import corrupt, plan_corruptions
from .files import plan_files, read_fuzzed
from .inputs import CASES, lay_out, refuse
from .kills import Ground, kill_chain, plan_chains, plan_signals, send_signal
from .record import Case, Record, code_digest
from .worker import INSIDE, Worker

#: Part → what a good case is called.
TITLES = {
    "kills": "kills survived (SIGKILL)",
    "signals": "stopped politely (SIGINT, SIGTERM)",
    "corruptions": "corruptions detected",
    "inputs": "bad inputs refused clearly",
    "files": "fuzzed files without an unhandled exception",
}


def main() -> int:
    options = _options()
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    identity = {"seed": options.seed, "code": code_digest()}
    record = Record(work / "cases.jsonl", identity)
    start = time.monotonic()
    with Worker() as worker:
        ground = Ground(worker, work / "inputs", work, options.seed)
        ground.make_inputs()
        todo = list(_cases(ground, options))
        if options.only:
            todo = [(key, make) for key, make in todo if options.only in key]
        _work_off(todo, record, repeat=bool(options.only))
    cases = [record.cases[key] for key, _ in todo]
    print(table(cases))
    if not options.only:
        _write(options.output, identity, cases, time.monotonic() - start)
    return int(any(not case["ok"] for case in cases))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs, shared by the stages")
    parser.add_argument("--signals", type=int, default=2, help="of SIGINT and SIGTERM each, for each stage")
    parser.add_argument("--corruptions", type=int, default=74, help="different (file kind, damage)")
    parser.add_argument("--inputs", type=int, default=len(CASES), help="wrong calls")
    parser.add_argument("--files", type=int, default=10_000, help="fuzzed files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="scratch folder, and the cases done")
    parser.add_argument("--output", type=Path, default=Path("docs/results/faults.json"))
    parser.add_argument("--only", help="repeat the cases whose key contains this; writes no output")
    options = parser.parse_args()
    options.work = options.work.resolve()
    return options


def _cases(ground: Ground, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Every case as its key and a call; the quick ones first."""
    scratch, seed = ground.scratch, options.seed
    for reader, number, count in plan_files(options.files):
        yield f"files {reader} {number}", partial(read_fuzzed, scratch, seed, reader, number, count)
    folder: list[Path] = []
    for bad in CASES[: options.inputs]:
        yield bad.key, partial(_refuse, ground, folder, bad)
    for chain in plan_chains(options.kills):
        yield f"kills {chain[0]} {chain[1]}", partial(kill_chain, ground, *chain)
    for one in plan_signals(options.signals):
        yield f"signals {one[0]} {one[1]} {one[2]}", partial(send_signal, ground, *one)
    for what in plan_corruptions(options.corruptions):
        yield f"corruptions {', '.join(what)}", partial(corrupt, ground, *what)


def _refuse(ground: Ground, folder: list[Path], bad: object) -> Case:
    if not folder:  # laid out once, and only when a case asks for it
        folder.append(lay_out(ground))
    return refuse(ground, folder[0], bad)


def _work_off(todo: list, record: Record, repeat: bool) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn()) as bars:
        bar = bars.add_task("faults", total=len(todo))
        for key, make in todo:
            bars.update(bar, description=key[:40])
            if repeat or key not in record.cases:
                case = make()
                record.add(case)
                if not case["ok"]:
                    bars.console.print(_failure(case), markup=False, highlight=False)
            bars.advance(bar)


def figures(cases: list[Case]) -> dict[str, dict[str, int]]:
    """Part → good and all: kills and files are counted one by one, the others by case."""
    found = {}
    for part in TITLES:
        mine = [case for case in cases if case["part"] == part]
        weights = [_weight(case) for case in mine]
        bad = [len(case["failed"]) if part == "files" else _weight(case) for case in mine if not case["ok"]]
        found[part] = {"good": sum(weights) - sum(bad), "all": sum(weights)}
    return found


def _weight(case: Case) -> int:
    if case["part"] == "files":
        return case["read"] + case["refused"] + len(case["failed"])
    return len(case["blows"]) or int(not case["ok"]) if case["part"] == "kills" else 1


def kills_by(cases: list[Case], what: str) -> dict[str, int]:
    """How many kills fell in each command ("command"), or at each point that a command had come to ("reached")."""
    kills = [(case["key"].split(" ", 1)[1].rsplit(" ", 1)[0], blow["reached"])
             for case in cases if case["part"] == "kills" for blow in case["blows"]]  # fmt: skip
    return dict(Counter(kill[what == "reached"] for kill in kills))


def kills_inside(cases: list[Case]) -> dict[str, int]:
    """How many kills fell inside training steps, and inside sampling."""
    blows = [blow["how"] for case in cases if case["part"] == "kills" for blow in case["blows"]]
    return {name: sum(how.startswith(f"inside {name}") for how in blows) for name in INSIDE}


def differed(cases: list[Case]) -> int:
    """Cases after which the results were not those of an undisturbed run."""
    return sum(bool(case.get("differing")) for case in cases)


def table(cases: list[Case]) -> str:
    """The figures as lines."""
    lines = [f"{TITLES[part]:<50}{n['good']:>7} / {n['all']}" for part, n in figures(cases).items()]
    for what in ("command", "reached"):
        found = kills_by(cases, what)
        lines.insert(1, f"  by {what:<10} {', '.join(f'{name} {n}' for name, n in found.items())}")
    lines.append(f"{'results that differed afterwards':<50}{differed(cases):>7}")
    return "\n".join([*lines, *(_failure(case) for case in cases if not case["ok"])])


def _failure(case: Case) -> str:
    why = case.get("problem") or case.get("failed") or case.get("differing") or case.get("said")
    return f"FAILED: {case['key']}\n  {str(why)[:1500]}\n  again: python -m tests.faults --only {case['key']!r}"


def _write(path: Path, identity: dict, cases: list[Case], seconds: float) -> None:
    from ebmcal.pipeline.stages import versions

    signals = [case for case in cases if case["part"] == "signals"]
    summary = {
        **figures(cases),
        "kills by command": kills_by(cases, "command"),
        "kills by point reached": kills_by(cases, "reached"),
        "kills inside training steps and sampling": kills_inside(cases),
        "corruptions by outcome": dict(Counter(c["outcome"] for c in cases if c["part"] == "corruptions")),
        "slowest stop, seconds": max((c["blows"][0]["seconds_to_stop"] for c in signals), default=0),
        "cases that left files only needed in between": sum(bool(c.get("leftovers")) for c in cases),
        "results that differed": differed(cases),
    }
    document = identity | {"versions": versions(), "seconds of the last session": round(seconds)}
    document |= {"figures": summary, "cases": cases}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"Written to {path}.")


if __name__ == "__main__":
    sys.exit(main())
