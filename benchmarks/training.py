"""A training step against the published recipe, sorted micro-batches and the stock Trainer.

    python benchmarks/training.py [--size minilm] [--size roberta-base] [--rounds 1]

The recipe pads every text to 128 tokens and runs data and each of the K noise batches in passes of their own, in fp32;
we take bfloat16 where the hardware has it, as a run does.
Sides take turns in one run; a ratio is the other side's time over ours. Texts are random tokens with the lengths of
SST-2, the same for all sides; weights are random, of the size named: speed does not depend on their values. Batches of
32, K = 8.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from ebmcal.models.classifier import EnergyClassifier
from ebmcal.models.energies import hidden
from ebmcal.models.loading import quiet
from ebmcal.models.packing import classify_padded, pack, pad
from ebmcal.models.tokens import TokenTable
from ebmcal.noise.supply import Stored
from ebmcal.training import losses
from ebmcal.training.callbacks import Progress
from ebmcal.training.methods import METHODS, Settings
from ebmcal.training.plan import Collator, TrainingPlan
from ebmcal.training.running import has_fast_bf16, training_arguments
from ebmcal.training.trainer import JointTrainer
from timing import draw_texts, in_turns, peak, publish

BATCH, NOISE_RATIO, PADDED = 32, 8, 128

SIZES: dict[str, Callable[[], Any]] = {
    "minilm": lambda: BertForSequenceClassification(
        BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    ),
    "roberta-base": lambda: RobertaForSequenceClassification(
        RobertaConfig(vocab_size=50265, max_position_embeddings=514, pad_token_id=1)
    ),
}
GOALS = {"minilm": 25, "roberta-base": 18}


def make_steps(n: int = 1, noise_ratio: int = NOISE_RATIO) -> list[dict[str, Any]]:
    """Batches as the collator makes them: data texts, then noise texts with label -1."""
    size = BATCH * (1 + noise_ratio)
    labels = np.concatenate([np.arange(BATCH) % 2, np.full(BATCH * noise_ratio, -1)])
    rest = {"labels": labels, "mixed": np.full((size, 3), -1.0, dtype=np.float32)}
    groups = [draw_texts(size, seed=i) for i in range(n)]
    return [{"ids": t, "types": [np.zeros(len(x), dtype=np.int64) for x in t], **rest} for t in groups]


def published_step(model: torch.nn.Module, step: dict[str, Any]) -> None:
    """Data, then each of K noise batches, each padded to 128 in a pass of its own."""
    for k in range(1 + NOISE_RATIO):
        texts = step["ids"][k * BATCH : (k + 1) * BATCH]
        ids = torch.full((BATCH, PADDED), model.config.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for i, text in enumerate(texts):
            ids[i, : len(text)], mask[i, : len(text)] = torch.from_numpy(text), 1
        logits = model(input_ids=ids, attention_mask=mask).logits
        if k == 0:
            labels = torch.from_numpy(step["labels"][:BATCH])
            loss = losses.cross_entropy(logits, labels).mean()
            loss = loss + losses.nce_data_term(hidden(logits), NOISE_RATIO).mean()
        else:
            loss = losses.nce_noise_term(hidden(logits), NOISE_RATIO).mean()
        loss.backward()
    model.zero_grad()


def sorted_step(model: torch.nn.Module, step: dict[str, Any]) -> None:
    """Length-sorted micro-batches of 32, each padded to its longest: what one would do without packing."""
    lengths = np.array([len(t) for t in step["ids"]])
    order = np.argsort(lengths, kind="stable")
    with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bf16()):
        for start in range(0, len(lengths), BATCH):
            logits = classify_padded(model, pack([step["ids"][i] for i in order[start : start + BATCH]]))
            (losses.nce_noise_term(hidden(logits.float()), NOISE_RATIO).sum() / BATCH).backward()
    model.zero_grad()


def our_trainer(model: torch.nn.Module, method: str = "hidden", n_steps: int = 1) -> JointTrainer:
    """The trainer that `ebmcal run` uses, over texts in memory."""
    data, noise = (_table(draw_texts(BATCH * n_steps * k, seed=k)) for k in (1, NOISE_RATIO))
    args = training_arguments(
        Path(tempfile.mkdtemp()), n_steps=n_steps, batch_size=BATCH, learning_rate=1e-5, warmup_steps=0,
        weight_decay=0.1, precision="auto", seed=0, save_steps=10**6,
    )  # fmt: skip
    ratio = NOISE_RATIO if METHODS[method].uses_noise else 0
    plan = TrainingPlan(n_rows=len(data), n_steps=n_steps, batch_size=BATCH, noise_ratio=ratio, seed=0)
    trainer = JointTrainer(
        EnergyClassifier(model, "hidden"), method=METHODS[method], settings=Settings(NOISE_RATIO), args=args,
        collator=Collator(data, np.arange(len(data)) % 2, Stored("noise", noise, 0)), train_dataset=plan,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.wrapped = trainer.accelerator.prepare_model(trainer.model)
    return trainer


def _table(texts: list[np.ndarray]) -> TokenTable:
    ids, offsets = np.concatenate(texts), np.cumsum([0, *(len(t) for t in texts)])
    return TokenTable(ids, np.zeros(len(ids), dtype=np.uint8), offsets, 0)


def our_precision() -> str:
    """What `--precision auto` takes here."""
    return "bf16" if has_fast_bf16() else "fp32"


def our_step(trainer: JointTrainer, step: dict[str, Any]) -> None:
    trainer.training_step(trainer.wrapped, step)
    trainer.wrapped.zero_grad()


def useful_flops(model: torch.nn.Module, step: dict[str, Any]) -> float:
    """6 × parameters of the layers × real tokens, plus attention: what the mathematics needs."""
    layers = sum(p.numel() for p in model.base_model.encoder.parameters())
    lengths = np.array([len(t) for t in step["ids"]])
    config = model.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * float((lengths**2).sum())
    return 6 * layers * float(lengths.sum()) + attention


def measure_step(size: str, rounds: int) -> list[dict[str, Any]]:
    """Against the recipe and the sorted micro-batches, and the share of the machine's peak."""
    torch.manual_seed(0)
    (step,), precision = make_steps(), our_precision()
    recipe, plain, ours = SIZES[size](), SIZES[size](), SIZES[size]()
    trainer = our_trainer(ours)
    work = {
        "published recipe": lambda: published_step(recipe, step),
        "length-sorted": lambda: sorted_step(plain, step),
        "ours": lambda: our_step(trainer, step),
    }
    times = in_turns(work, rounds)
    top = peak(torch.bfloat16 if precision == "bf16" else torch.float32)
    flops, n_tokens, name = (
        useful_flops(ours, step),
        sum(map(len, step["ids"])),
        f"training step, {size} size, {precision}",
    )
    facts = {"seconds": times["ours"], "tokens_per_second": n_tokens / times["ours"]}
    return [
        {"name": name, "ratio": times["published recipe"] / times["ours"], "goal": GOALS[size],
         "reference": "published recipe, fp32", **facts},
        {"name": f"{name}, share of the matmul peak", "ratio": flops / times["ours"] / top, "goal": 0.65,
         "reference": f"{top / 1e9:.0f} GFLOP/s in {precision}",
         "recipe_over_peak": times["published recipe"] * top / flops},  # what the first ratio would be at the peak
        {"name": name, "ratio": times["length-sorted"] / times["ours"], "goal": 1.4,
         "reference": f"length-sorted micro-batches, {precision}"},
    ]  # fmt: skip


def measure_plain_step(size: str, rounds: int) -> list[dict[str, Any]]:
    """A plain finetuning step against the stock Trainer's with its default collator, over eight batches."""
    torch.manual_seed(0)
    steps = make_steps(8, noise_ratio=0)
    stock, ours = SIZES[size](), our_trainer(SIZES[size](), "baseline")
    args = TrainingArguments("unused", per_device_train_batch_size=BATCH, use_cpu=True, report_to="none")
    trainer = Trainer(stock, args=args)
    trainer.current_gradient_accumulation_steps = 1

    def theirs() -> None:
        for step in steps:
            ids, mask, _ = pad(pack(sorted(step["ids"], key=len)), stock.config.pad_token_id)
            labels = torch.from_numpy(step["labels"])
            trainer.training_step(stock, {"input_ids": ids, "attention_mask": mask, "labels": labels})
            stock.zero_grad()

    def mine() -> None:
        for step in steps:
            our_step(ours, step)

    times = in_turns({"stock": theirs, "ours": mine}, rounds)
    return [
        {"name": f"plain finetuning step, {size} size, {our_precision()}",
         "ratio": times["stock"] / times["ours"], "goal": 2,
         "reference": "transformers.Trainer, default collator, fp32", "seconds": times["ours"] / len(steps)}
    ]  # fmt: skip


def measure_overhead(size: str, n_steps: int = 12) -> list[dict[str, Any]]:
    """The share of a whole training, optimizer and logging included, that forward and backward passes take."""
    torch.manual_seed(0)
    trainer, inside = our_trainer(SIZES[size](), n_steps=n_steps), []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            inside.append(time.perf_counter() - start)
            return result

        return call

    trainer.model.forward = timed(trainer.model.forward)
    trainer.accelerator.backward = timed(trainer.accelerator.backward)
    lines: list[tuple[float, float]] = []  # (wall time, time inside so far) behind each step
    trainer.add_callback(Progress(lambda step, logs: lines.append((time.perf_counter(), sum(inside)))))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    (start, warm_up), (stop, total) = lines[0], lines[n_steps - 1]
    return [
        {"name": f"training, {size} size, {our_precision()}, share of time inside the model",
         "ratio": (total - warm_up) / (stop - start), "goal": 0.9,
         "reference": "wall time of the Trainer's loop: data, optimizer and logging included"}
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = measure_overhead("minilm") + measure_plain_step("minilm", options.rounds)
    for size in options.size or SIZES:
        results += measure_step(size, options.rounds)
    publish("training", results)


if __name__ == "__main__":
    with quiet():
        main()
