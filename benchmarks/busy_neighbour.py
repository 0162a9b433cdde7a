"""Training, prediction, serving and sampling on all cores, alone and next to one busy process.

    python benchmarks/busy_neighbour.py [--rounds 3] [--steps 20] [--threads 2] [--setting ebmcal]

Compared are several ways of waiting at barriers. OpenMP threads that finish their part spin until the others finish.
If another process holds a core, they spin for most of their time slice. `ebmcal/__init__.py` lets them sleep if it
finds the machine busy. Each measurement is a new process, because libgomp reads its settings once; settings take
turns. Needs an otherwise idle machine. Ratios are times divided by the time of torch's own setting on the idle
machine; lower is better.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ebmcal  # sets the environment before torch is loaded

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


def training() -> Callable[[], object]:
    """A training step of MiniLM's size, with random weights."""
    import torch

    from timing import draw_texts
    from training import BATCH, SIZES, our_step, our_trainer

    trainer, labels, texts = our_trainer(SIZES["minilm"](), "hidden"), torch.arange(BATCH) % 2, draw_texts(2 * BATCH)
    return lambda: our_step(trainer, texts, labels)


def prediction() -> Callable[[], object]:
    """64 texts."""
    from bulk_prediction import make_texts

    model, texts = minilm(), make_texts(64)
    return lambda: model.predict(texts)


def serving() -> Callable[[], object]:
    """Eight clients with eight texts each, one after the other, without the HTTP around them."""
    from bulk_prediction import make_texts
    from ebmcal.serving.batcher import Batcher
    from ebmcal.serving.service import Engine

    engine, texts = Engine(minilm()), make_texts(64)
    batcher, clients = Batcher(engine.encode, engine.answer), ThreadPoolExecutor(8)

    def client(number: int) -> None:
        for text in texts[number::8]:
            batcher.submit([text]).result()

    return lambda: list(clients.map(client, range(8)))


def sampling() -> Callable[[], object]:
    """32 texts of SmolLM2-135M."""
    import numpy as np

    from ebmcal.noise.causal_lm import Layout, NoiseLm
    from ebmcal.noise.sampler import sample
    from sampling import MEAN_LENGTH, SIZES
    from timing import draw_texts

    size = SIZES["smollm2"]
    lm = NoiseLm(size.build().eval(), None, size.markers, "infill", 0.4)
    prompts = [text.tolist() for text in draw_texts(8, MEAN_LENGTH)]
    uniforms = [[np.random.default_rng([i, k]).random(20) for k in range(4)] for i in range(8)]
    return lambda: sample(lm, [Layout(prompt, []) for prompt in prompts], uniforms)


def minilm() -> "ebmcal.Model":
    """MiniLM with a new head, in float32."""
    from bulk_prediction import save_model

    folder = Path(tempfile.mkdtemp())
    save_model(folder)
    return ebmcal.load(folder, precision="fp32")


#: Kind of work -> a function that prepares it, and how often it is repeated per step.
WORK = {"training": (training, 1), "prediction": (prediction, 1), "serving": (serving, 1), "sampling": (sampling, 0.2)}


def work(kind: str, steps: int, threads: int) -> float:
    """Seconds for some repetitions, after one to warm up."""
    import torch

    from timing import seconds

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    prepare, share = WORK[kind]
    step = prepare()
    step()
    return seconds(lambda: [step() for _ in range(round(share * steps))])


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
    parser.add_argument("--child", choices=list(WORK))
    options = parser.parse_args()
    if options.child:
        print(work(options.child, options.steps, options.threads))
        return
    from timing import publish

    settings = [s for s in SETTINGS if s == "torch's default" or s in (options.setting or SETTINGS)]
    cases = [(kind, setting, busy) for kind in WORK for setting in settings for busy in (0, 1)]
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
