"""SIGKILL at random moments, and just before random changes on disk; SIGINT and SIGTERM. Then the same command to its
end: what it leaves must be what an undisturbed one leaves, byte for byte.

A chain is one to three kills in a row before the command may end. Half of the kills strike inside training steps and
the sampling of noise, where the long hours of a real run go; of the others some at a random moment, more of them just
before a random change on disk: between writing and renaming, inside the saving of a checkpoint.
"""

import random
import shutil
import signal
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from .playground import STAGES, differing, fresh, leftovers, reached, results
from .record import Case
from .worker import MAKE_INPUTS, Ended, Worker

SHARE_INSIDE, SHARE_AT_CHANGES = 0.75, 0.6  # of commands that train or sample; of the other kills
CHAIN_LENGTHS = (1, 2, 1, 3, 1)
SECONDS_TO_STOP = 10  # Ctrl-C and SIGTERM end a command within this
HOW_TO_GO_ON = "same command again"
MOST_TRIES = 12  # a command may end before the blow falls


@dataclass(frozen=True)
class Reference:
    """What an undisturbed command leaves, how long it takes and how often it changes the disk."""

    seconds: float
    n_changes: int
    calls: dict[str, int]  # of training steps and of sampling
    results: dict[str, str]


@dataclass(frozen=True)
class Ground:
    """Where faults are injected: the worker, the inputs and a scratch folder."""

    worker: Worker
    inputs: Path
    scratch: Path
    seed: int = 0

    def reference(self, stage: str) -> Reference:
        """Run a command undisturbed; its folder stays, for the corruptions."""
        if stage not in _REFERENCES.setdefault(self.scratch, {}):
            folder = fresh(self.inputs, self.scratch / f"reference {stage}")
            ended = self.worker.run(STAGES[stage], folder)
            if ended.code:
                raise RuntimeError(f"{stage} failed undisturbed:\n{ended.said}")
            _REFERENCES[self.scratch][stage] = Reference(ended.seconds, ended.n_changes, ended.calls, results(folder))
        return _REFERENCES[self.scratch][stage]

    def make_inputs(self) -> None:
        """Write the inputs unless they are there."""
        if not self.inputs.exists():
            aside = self.scratch / "inputs.part"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            made = self.worker.run([MAKE_INPUTS], aside)
            if made.code:
                raise RuntimeError(f"The inputs could not be made:\n{made.said}")
            aside.rename(self.inputs)

    def rng(self, key: str) -> random.Random:
        return random.Random(f"{self.seed} {key}")


_REFERENCES: dict[Path, dict[str, Reference]] = {}


def plan_chains(n_kills: int) -> list[tuple[str, int, int]]:
    """(stage, number, kills) so that the stages share `n_kills`, one apart at most.

    >>> sum(kills for _, _, kills in plan_chains(50))
    50
    """
    stages, chains = list(STAGES), []
    for i, stage in enumerate(stages):
        left = n_kills // len(stages) + (i < n_kills % len(stages))
        for number, length in enumerate(cycle(CHAIN_LENGTHS)):
            if left <= 0:
                break
            chains.append((stage, number, min(length, left)))
            left -= length
    return chains


def kill_chain(ground: Ground, stage: str, number: int, n_kills: int) -> Case:
    """Kill a command `n_kills` times, let it end, compare. The first chain of a stage is of `python -m ebmcal`."""
    key, kills = f"kills {stage} {number}", []
    rng, reference = ground.rng(key), ground.reference(stage)
    folder, forked = fresh(ground.inputs, ground.scratch / "killed"), number > 0
    for _ in range(MOST_TRIES):
        if len(kills) == n_kills:
            break
        blow = draw_blow(rng, reference, forked)
        ended = ground.worker.run(STAGES[stage], folder, forked=forked, **blow)
        if ended.killed:
            kills.append({"how": _describe(blow), "reached": reached(folder)})
            continue
        so_far = _verdict("kills", key, kills, ended, folder, reference)  # it ended before the blow fell
        if not so_far["ok"]:
            return so_far
        fresh(ground.inputs, folder)
    ended = ground.worker.run(STAGES[stage], folder, forked=forked)
    return _verdict("kills", key, kills, ended, folder, reference)


def draw_blow(rng: random.Random, reference: Reference, forked: bool) -> dict[str, Any]:
    """Where the next kill strikes: options of `Worker.run`."""
    inside = [name for name, n in reference.calls.items() if n]
    if forked and inside and rng.random() < SHARE_INSIDE:
        name = rng.choice(inside)
        return {"kill_inside": (name, rng.randint(1, reference.calls[name]))}
    if forked and rng.random() < SHARE_AT_CHANGES:
        return {"kill_at_change": rng.randint(1, reference.n_changes)}
    return {"kill_after": round(rng.uniform(0, reference.seconds), 3)}


def _describe(blow: dict[str, Any]) -> str:
    (how, value), *_ = blow.items()
    if how == "kill_inside":
        return f"inside {value[0]} {value[1]}"
    return f"before change {value} on disk" if how == "kill_at_change" else f"after {value} s"


def plan_signals(per_signal: int) -> list[tuple[str, str, int]]:
    """(stage, signal, number)."""
    return [(stage, name, i) for stage in STAGES for name in ("SIGINT", "SIGTERM") for i in range(per_signal)]


def send_signal(ground: Ground, stage: str, name: str, number: int) -> Case:
    """A signal at a random moment: the command stops soon, says how to go on, and goes on to the same results."""
    key = f"signals {stage} {name} {number}"
    rng, reference = ground.rng(key), ground.reference(stage)
    for _ in range(MOST_TRIES):
        folder = fresh(ground.inputs, ground.scratch / "signalled")
        moment = round(rng.uniform(0.05, 0.9 * reference.seconds), 3)
        stopped = ground.worker.run(STAGES[stage], folder, signal_after=(getattr(signal, name), moment))
        if stopped.code != 0:
            break
    facts = [{"how": f"{name} after {moment} s", "reached": reached(folder), "code": stopped.code,
              "seconds_to_stop": round(stopped.seconds_after_signal, 2)}]  # fmt: skip
    problem = _manners(stopped)
    if problem:
        return _failed("signals", key, facts, problem)
    ended = ground.worker.run(STAGES[stage], folder)
    return _verdict("signals", key, facts, ended, folder, reference)


def _manners(stopped: Ended) -> str | None:
    """What is wrong with the way a command stopped."""
    if stopped.code != 130:
        return f"exit code {stopped.code}, not 130: {stopped.said[-1500:]}"
    if "Traceback" in stopped.said:
        return f"a traceback: {stopped.said[-1500:]}"
    if HOW_TO_GO_ON not in " ".join(stopped.said.split()):
        return f"does not say how to go on: {stopped.said[-500:]}"
    if stopped.seconds_after_signal > SECONDS_TO_STOP:
        return f"took {stopped.seconds_after_signal:.1f} s to stop"
    return None


def _verdict(part: str, key: str, blows: list, ended: Ended, folder: Path, reference: Reference) -> Case:
    if ended.code:
        return _failed(part, key, blows, f"does not go on, exit code {ended.code}: {ended.said[-1500:]}")
    other = differing(results(folder), reference.results)
    case = {"part": part, "key": key, "ok": not other, "blows": blows, "differing": other}
    case |= {"leftovers": len(leftovers(folder))}
    if not other:
        shutil.rmtree(folder)
    return case


def _failed(part: str, key: str, blows: list, problem: str) -> Case:
    return {"part": part, "key": key, "ok": False, "blows": blows, "differing": [], "problem": problem}
