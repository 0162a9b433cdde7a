"""The cost of online noise: writing and tokenising the noise texts of a step, as a share of the step.

    python benchmarks/online_noise.py [--rounds 5]

Film-review sentences, MiniLM, a batch of 16 with one noise text each, as in `ebmcal demo`. Both are timed in turns.
The ratio is the goal divided by the share, so above 1 means within the goal. The masked LM has the size of MiniLM and
random weights, which changes the words but not the time.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForMaskedLM

from ebmcal import EnergyConfig, EnergyTrainer
from ebmcal.data import DataConfig, load_task
from ebmcal.data.splits import Texts
from ebmcal.modeling.classifier import tokenize
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import check_encoder, load_encoder, load_tokenizer, quiet
from ebmcal.noise import NoiseStream, online_stream
from ebmcal.noise.masked_lm import MaskedLm
from ebmcal.noise.sources import OnlineStream
from timing import in_turns, publish

#: The share of a step that online noise may take, and that of a masked LM, which runs a model.
GOAL, MLM_GOAL = 0.02, 0.5

N_STEPS, BATCH = 10, 16


def masked_lm_stream(train: Dataset, directory: Path) -> NoiseStream:
    AutoModelForMaskedLM.from_config(check_encoder("minilm")).save_pretrained(directory)
    load_tokenizer("minilm").save_pretrained(directory)
    return OnlineStream("mlm", MaskedLm.from_pretrained(str(directory)), Texts(train), seed=1)


def measure(name: str, stream: NoiseStream, train: Dataset, rounds: int, goal: float) -> dict[str, Any]:
    """The noise of some steps against the steps."""
    args = EnergyConfig(
        tempfile.mkdtemp(), method="hidden", max_steps=N_STEPS, per_device_train_batch_size=BATCH, use_cpu=True,
        bf16=use_bf16("auto"), report_to="none",
    )  # fmt: skip
    trainer = EnergyTrainer(
        load_encoder("minilm", ("0", "1")), args, train_dataset=train, processing_class=load_tokenizer("minilm"),
        noise=stream,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    model, collator = trainer.accelerator.prepare_model(trainer.model), trainer.data_collator
    items = [[trainer.train_dataset[s * BATCH + i] for i in range(BATCH)] for s in range(N_STEPS)]
    batches = [collator(step) for step in items]

    def train_steps() -> None:
        for batch in batches:
            trainer.training_step(model, batch)
            model.zero_grad()

    def draw_noise() -> None:
        for step in items:
            drawn = stream.draw([number for item in step for number in item.noise])
            tokenize([text.text for text in drawn], collator.tokenizer, collator.max_length)

    times = in_turns({"noise": draw_noise, "steps": train_steps}, rounds)
    share = times["noise"] / times["steps"]
    return {
        "name": f"online noise {name}: share of a step", "ratio": goal / share, "goal": 1,
        "reference": f"{goal:.0%} of a step", "share": share, "seconds_a_step": times["steps"] / N_STEPS,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        data = load_task(DataConfig(task="rotten-tomatoes", max_train_rows=1000), Path(scratch))
        train = data.splits["train"]
        results = [
            measure(noise, online_stream(noise, train, seed=1), train, rounds, GOAL)
            for noise in ("splice", "unrelated", "splice 0.8, unrelated 0.2")
        ]
        results.append(measure("mlm", masked_lm_stream(train, Path(scratch) / "mlm"), train, rounds, MLM_GOAL))
    publish("online_noise", results)


if __name__ == "__main__":
    with quiet():
        main()
