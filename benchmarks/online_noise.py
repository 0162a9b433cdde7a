"""What fresh noise costs: writing and tokenising the noise of a step, as a share of the step itself.

    python benchmarks/online_noise.py [--rounds 5]

Real film-review sentences, MiniLM, a batch of 16 with one noise text each: the step that `ebmcal demo` makes. Both are
timed in turns in one run. The figure is the goal over the share, so that above 1 means within the goal. The masked LM
is as large as MiniLM; its weights are drawn, which changes the words and not the time.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoModelForMaskedLM

from ebmcal.config import load_config
from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.loading import load_encoder, load_tokenizer, quiet
from ebmcal.pipeline.cache import tokens_of
from ebmcal.pipeline.run_noise import make_noise
from ebmcal.pipeline.stages import prepare
from ebmcal.progress import Reporter
from ebmcal.training.methods import METHODS, Settings
from ebmcal.training.plan import Collator, plan_of
from ebmcal.training.running import training_arguments
from ebmcal.training.trainer import JointTrainer
from timing import in_turns, publish

#: Online noise may take this share of a step; that of a masked LM, which is run for it, this.
GOAL, MLM_GOAL = 0.02, 0.5


def masked_lm(folder: Path) -> str:
    """A masked LM of MiniLM's size, as a source."""
    AutoModelForMaskedLM.from_config(load_encoder("minilm", ("0", "1")).config).save_pretrained(folder)
    load_tokenizer("minilm").save_pretrained(folder)
    return f"mlm:{folder}"


def measure(noise: str, rounds: int, goal: float = GOAL, n_steps: int = 10) -> dict[str, Any]:
    """The noise of `n_steps` steps against the steps."""
    with tempfile.TemporaryDirectory() as scratch:
        given = {
            "task": "rotten-tomatoes",
            "encoder": "minilm",
            "noise": noise,
            "max_train_rows": 1000,
            "steps": n_steps,
        }
        config, data = prepare(load_config(None, given | {"output": scratch, "cache_dir": scratch}), Reporter())
        supply = make_noise(config, data, Reporter()).supply(seed=1)
        train = data.splits["train"]
        plan = plan_of(config, len(train), seed=1)
        collator = Collator(tokens_of(train, config, Reporter()), train.labels, supply)
        args = training_arguments(
            Path(scratch), n_steps=n_steps, batch_size=config.batch_size, learning_rate=1e-5, warmup_steps=0,
            weight_decay=0.1, precision="auto", seed=0, save_steps=10**6,
        )  # fmt: skip
        model = EnergyClassifier(load_encoder("minilm", data.label_names))
        trainer = JointTrainer(
            model, method=METHODS["hidden"], settings=Settings(config.noise_ratio), args=args, collator=collator,
            train_dataset=plan,
        )  # fmt: skip
        trainer.current_gradient_accumulation_steps = 1
        batches = [[plan[p] for p in range(s * config.batch_size, (s + 1) * config.batch_size)] for s in range(n_steps)]
        ready = [collator(batch) for batch in batches]

        def train_steps() -> None:
            for batch in ready:
                trainer.training_step(trainer.model, batch)
                trainer.model.zero_grad()

        def draw_noise() -> None:
            for batch in batches:
                supply.draw([number for step in batch for number in step.noise])

        times = in_turns({"noise": draw_noise, "steps": train_steps}, rounds)
    share, source = times["noise"] / times["steps"], noise.split(":")[0]
    return {
        "name": f"online noise {source}: share of a step", "ratio": goal / share, "goal": 1,
        "reference": f"{goal:.0%} of a step", "share": share, "seconds_a_step": times["steps"] / n_steps,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    results = [measure(noise, rounds) for noise in ("splice", "far", "splice 0.8, far 0.2")]
    with quiet(), tempfile.TemporaryDirectory() as folder:
        results.append(measure(masked_lm(Path(folder)), rounds, MLM_GOAL))
    publish("online_noise", results)
