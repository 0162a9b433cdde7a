"""Damaged files: every kind of file that a run or the cache holds, flipped, cut, emptied, deleted or overwritten.

On a finished run and on one that was killed while it trained. Then the same command: it must name the damage and make
that part again, or refuse and say what to do; and what it leaves at the end must be what an undisturbed one leaves.
"""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from .kills import Ground
from .playground import STAGES, differing, fresh, results
from .record import Case


def _flip(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


TELLS_OF_DAMAGE = re.compile(r"damaged|lost|missing|made again|not used|not listed|not readable|^Error")

#: Damage → contents after it; None: the file is gone.
DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flip a bit": _flip,
    "truncate": lambda content, rng: content[: rng.randrange(max(1, len(content) - 1))],  # more than a last line end
    "empty": lambda content, rng: b"",
    "garbage": lambda content, rng: rng.randbytes(len(content)),
    "delete": lambda content, rng: None,
}

#: Kind → where it is in a finished run.
FINISHED = {
    "noise shard": "cache/noise/*/shard-*.parquet",
    "noise record": "cache/noise/*/noise.jsonl",
    "noise LM weights": "cache/noise_lm/*/model.safetensors",
    "noise LM config": "cache/noise_lm/*/config.json",
    "noise LM card": "cache/noise_lm/*/noise_lm.json",
    "noise LM tokenizer": "cache/noise_lm/*/tokenizer.json",
    "noise LM checksums": "cache/noise_lm/*/checksums.json",
    "token ids": "cache/tokens/*/ids.npy",
    "token offsets": "cache/tokens/*/offsets.npy",
    "token checksums": "cache/tokens/*/checksums.json",
    "data": "cache/texts-*.arrow",
    "data facts": "cache/texts-*.json",
    "model weights": "run/checkpoints/*/model/model.safetensors",
    "model config": "run/checkpoints/*/model/config.json",
    "model tokenizer": "run/checkpoints/*/model/tokenizer.json",
    "model card": "run/checkpoints/*/model/ebmcal.json",
    "model checksums": "run/checkpoints/*/model/checksums.json",
    "predictions": "run/predictions/*/*.parquet",
    "predictions checksums": "run/predictions/*/checksums.json",
    "metrics": "run/metrics.json",
    "config": "run/config.yaml",
    "fingerprints": "run/fingerprints.json",
    "history": "run/history/*.jsonl",
    "noise examples": "run/noise_examples.json",
    "run checksums": "run/checksums.json",
}

#: Kinds that only `run` makes; the others are those of `train`.
OF_RUN = {"predictions", "predictions checksums", "metrics", "noise examples", "run checksums"}

#: Kind → where it is in a run that was killed while it trained a model, or (noise LM) the noise LM.
_CHECKPOINT = {
    "weights": "model.safetensors",
    "optimizer": "optimizer.pt",
    "scheduler": "scheduler.pt",
    "random state": "rng_state.pth",
    "trainer state": "trainer_state.json",
    "checksums": "checksums.json",
}
TRAINING = {f"checkpoint {k}": f"run/checkpoints/hidden-seed1/checkpoint-6/{n}" for k, n in _CHECKPOINT.items()}
FITTING = {f"noise LM checkpoint {k}": f"cache/noise_lm/*.work/checkpoint-50/{n}" for k, n in _CHECKPOINT.items()}

STATES = {"finished": FINISHED, "training": TRAINING, "fitting": FITTING}


def plan_corruptions(count: int) -> list[tuple[str, str, str]]:
    """`count` different (state, kind, damage); every kind comes before any comes twice.

    >>> len(set(plan_corruptions(60)))
    60
    """
    kinds = [(state, kind) for state, paths in STATES.items() for kind in paths]
    damages = list(DAMAGES)
    rounds = [
        (state, kind, damages[(i + turn) % len(damages)])
        for turn in range(len(damages))
        for i, (state, kind) in enumerate(kinds)
    ]
    return rounds[:count]


def prepare_state(ground: Ground, state: str, stage: str) -> Path:
    """A finished run (the reference), or one that was killed when its second checkpoint had just been written."""
    folder = ground.scratch / f"state {state} {stage}"
    if not folder.exists():
        ground.reference(stage)
        if state == "finished":
            shutil.copytree(ground.scratch / f"reference {stage}", folder)
        else:
            fresh(ground.inputs, folder)
            ended = ground.worker.run(STAGES[stage], folder, kill_when=next(reversed(STATES[state].values())))
            if not ended.killed:
                raise RuntimeError(f"The run could not be killed while {state}:\n{ended.said}")
    return folder


def corrupt(ground: Ground, state: str, kind: str, damage: str) -> Case:
    """Damage one file, run the same command, judge what it says and what it leaves."""
    key = f"corruptions {state}, {kind}, {damage}"
    stage = "run" if kind in OF_RUN else "train"  # what `train` makes as well is tried with it: that is quicker
    rng, reference = ground.rng(key), ground.reference(stage)
    source, folder = prepare_state(ground, state, stage), ground.scratch / "corrupted"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = rng.choice(sorted(folder.glob(STATES[state][kind])))
    _injure(path, DAMAGES[damage], rng)
    ended = ground.worker.run(STAGES[stage], folder)
    case = {"part": "corruptions", "key": key, "file": path.relative_to(folder).as_posix(), "said": _lines(ended.said)}
    if "Traceback" in ended.said or ended.code < 0:
        return case | {"ok": False, "outcome": "crashed", "problem": ended.said[-1500:], "differing": []}
    named, outcome = _is_named(path, case["said"]), "made again"
    if ended.code:  # it must say what to delete; then it goes on
        named, outcome = named and "elete" in ended.said, "refused"
        path.unlink(missing_ok=True)
        ended = ground.worker.run(STAGES[stage], folder)
    if ended.code:
        problem = f"does not go on: {ended.said[-800:]}"
        return case | {"ok": False, "outcome": outcome, "problem": problem, "differing": []}
    other = differing(results(folder), reference.results)
    return case | {"ok": named and not other, "outcome": outcome, "named": named, "differing": other}


def _is_named(path: Path, lines: list[str]) -> bool:
    """Whether a line that tells of damage has the name of the file, or of the folder that is made again as a whole."""
    return any(path.name in line or (path.parent.name != "run" and path.parent.name in line) for line in lines)


def _injure(path: Path, damage: Callable[[bytes, random.Random], bytes | None], rng: random.Random) -> None:
    before = path.read_bytes()
    after = damage(before, rng)
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)


def _lines(said: str) -> list[str]:
    """The lines that tell of damage."""
    return [line.strip()[:300] for line in said.splitlines() if TELLS_OF_DAMAGE.search(line)]
