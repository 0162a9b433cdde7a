"""Training and prediction on all cores, alone and next to one busy process, for several ways of waiting at barriers.

    python benchmarks/busy_neighbour.py [--rounds 3] [--steps 20] [--threads 2]

OpenMP threads that finish their part spin until the others finish. If another process holds a core, they spin for most
of their time slice. `ebmcal/__init__.py` lets them sleep if it finds the machine busy. Each measurement is a new
process, because libgomp reads its settings once; settings take turns. Needs an otherwise idle machine. Ratios are
times divided by the time of torch's own setting on the idle machine; lower is better.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import ebmcal  # noqa: F401  # sets the environment before torch is loaded

#: Way of waiting -> environment. KMP_BLOCKTIME at its default value keeps ebmcal from changing anything. GOMP_SPINCOUNT
#: at its default value would make threads of oversubscribed cores spin, which libgomp does not if it is not set.
SETTINGS = {
    "torch's default": {"KMP_BLOCKTIME": "200"},
    "passive": {"GOMP_SPINCOUNT": "0"},
    "1,000 spins": {"GOMP_SPINCOUNT": "1000"},
    "10,000 spins": {"GOMP_SPINCOUNT": "10000"},
    "ebmcal": {},
}
#: Ends by itself, in case this script is killed.
NEIGHBOUR = "import time\nend = time.monotonic() + 300\nwhile time.monotonic() < end: pass"
GOALS = {"idle": 1.05, "busy": 1.5}


def work(kind: str, steps: int, threads: int) -> float:
    """Seconds for some training steps, or for prediction passes, with random weights of MiniLM's size."""
    import torch

    from timing import draw_texts, seconds
    from training import BATCH, SIZES, our_step, our_trainer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    trainer, labels = our_trainer(SIZES["minilm"](), "hidden"), torch.arange(BATCH) % 2
    texts = draw_texts(2 * BATCH)

    def step() -> None:
        if kind == "training":
            our_step(trainer, texts, labels)
        else:
            from ebmcal.modeling.classifier import Predictor
            from ebmcal.modeling.packing import Tokens

            tokens = [Tokens(text, text * 0) for text in texts]
            Predictor(trainer.classifier, None, 64).predict_tokens(tokens)

    step()
    return seconds(lambda: [step() for _ in range(steps)])


def measure(kind: str, setting: str, busy: bool, options: argparse.Namespace) -> float:
    """The seconds of one process with a setting, next to a busy process or not."""
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    environment = {k: v for k, v in os.environ.items() if k not in names} | SETTINGS[setting]
    command = [sys.executable, __file__, "--child", kind, "--steps", str(options.steps), "--threads"]
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) if busy else None
    try:
        result = subprocess.run(
            [*command, str(options.threads)], env=environment, check=True, capture_output=True, text=True
        )
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
    return float(result.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="Only these, and torch's default.")
    parser.add_argument("--child", choices=("training", "prediction"))
    options = parser.parse_args()
    if options.child:
        print(work(options.child, options.steps, options.threads))
        return
    from timing import publish

    settings = [s for s in SETTINGS if s == "torch's default" or s in (options.setting or SETTINGS)]
    cases = [(kind, setting, busy) for kind in ("training", "prediction") for setting in settings for busy in (0, 1)]
    times: dict[tuple[str, str, int], list[float]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for kind, setting, busy in cases:
            times[kind, setting, busy].append(measure(kind, setting, bool(busy), options))
    middle = {case: statistics.median(values) for case, values in times.items()}
    publish(
        "busy_neighbour",
        [
            {"name": f"{kind}, {setting}, {'next to a busy process' if busy else 'alone'}",
             "ratio": seconds / middle[kind, "torch's default", 0], "goal": GOALS["busy" if busy else "idle"],
             "reference": "torch's default, alone", "seconds": seconds}
            for (kind, setting, busy), seconds in middle.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
