"""A training step against the published recipe, length-sorted micro-batches and the stock Trainer.

    python benchmarks/training.py [--size minilm] [--size roberta-base] [--rounds 3]

The published recipe pads every text to 128 tokens and runs data and each of the K noise batches in separate passes, in
fp32; we use bf16 where the hardware has it, as a run does. All sides take turns in one run; a ratio is the other side's
time divided by ours. Texts are random tokens with the lengths of SST-2, the same for all sides; weights are random, of
the size named, because speed does not depend on their values. Batches of 32, K = 8.
"""

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from ebmcal import EnergyConfig, EnergyTrainer
from ebmcal.methods.joint import MicroBatch, nce_data_term, nce_noise_term
from ebmcal.modeling.energies import hidden
from ebmcal.modeling.packing import Tokens, divide, micro_batches, pack, padded_inputs, token_budget
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import quiet
from ebmcal.training.runtime import reuse_freed_memory
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
#: By precision.
GOALS = {"minilm": {"bf16": 25, "fp32": 16}, "roberta-base": {"bf16": 18, "fp32": 12}}


def published_step(model: torch.nn.Module, texts: list[np.ndarray], labels: torch.Tensor) -> None:
    """Data, then each of K noise batches, each padded to 128 tokens in its own pass."""
    for k in range(1 + NOISE_RATIO):
        ids = torch.full((BATCH, PADDED), model.config.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for i, text in enumerate(texts[k * BATCH : (k + 1) * BATCH]):
            ids[i, : len(text)], mask[i, : len(text)] = torch.from_numpy(text), 1
        logits = model(input_ids=ids, attention_mask=mask).logits
        if k == 0:
            loss = F.cross_entropy(logits, labels) + nce_data_term(hidden(logits), NOISE_RATIO).mean()
        else:
            loss = nce_noise_term(hidden(logits), NOISE_RATIO).mean()
        loss.backward()
    model.zero_grad()


def sorted_step(model: torch.nn.Module, texts: list[np.ndarray]) -> None:
    """Length-sorted micro-batches of 32, each padded to its longest text."""
    ordered = sorted(texts, key=len)
    with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16("auto")):
        for start in range(0, len(ordered), BATCH):
            batch = pack([Tokens(t, np.zeros(len(t))) for t in ordered[start : start + BATCH]])
            logits = model(**padded_inputs(model, batch)).logits
            (nce_noise_term(hidden(logits.float()), NOISE_RATIO).sum() / BATCH).backward()
    model.zero_grad()


def our_trainer(model: torch.nn.Module, method: str) -> EnergyTrainer:
    """The trainer of `ebmcal run`."""
    args = EnergyConfig(
        tempfile.mkdtemp(), method=method, noise_ratio=NOISE_RATIO, max_steps=1, per_device_train_batch_size=BATCH,
        bf16=use_bf16("auto"), use_cpu=True, report_to="none",
    )  # fmt: skip
    rows = Dataset.from_dict({"input_ids": [[2, 3]] * BATCH, "label": [0, 1] * (BATCH // 2)})
    noise = Dataset.from_dict({"text": ["unused"]})
    trainer = EnergyTrainer(model, args, train_dataset=rows, noise=noise if method != "baseline" else None)
    trainer.current_gradient_accumulation_steps = 1
    trainer.wrapped = trainer.accelerator.prepare_model(trainer.model)
    return trainer


def our_step(trainer: EnergyTrainer, texts: list[np.ndarray], labels: torch.Tensor) -> None:
    """Packing, forward and backward over data and noise."""
    tokens = [Tokens(text, np.zeros(len(text), dtype=np.uint8)) for text in texts]
    every = torch.cat([labels, torch.zeros(len(texts) - len(labels), dtype=torch.int64)])
    is_noise = torch.arange(len(texts)) >= len(labels)
    divided = divide if trainer.data_collator.is_parallel else micro_batches
    parts = divided(np.array([len(t) for t in texts]), token_budget(trainer.classifier.config))
    batches = [
        MicroBatch(pack([tokens[i] for i in part]), every[part], is_noise[part], len(texts) > BATCH) for part in parts
    ]
    trainer.training_step(trainer.wrapped, {"micro_batches": batches, "n_data": len(labels)})
    trainer.wrapped.zero_grad()


def useful_flops(model: torch.nn.Module, texts: list[np.ndarray]) -> float:
    """6 × parameters of the layers × real tokens, plus attention: what the mathematics needs."""
    layers = sum(p.numel() for p in model.base_model.encoder.parameters())
    lengths = np.array([len(t) for t in texts])
    attention = 12 * model.config.num_hidden_layers * model.config.hidden_size * float((lengths**2).sum())
    return 6 * layers * float(lengths.sum()) + attention


def measure_joint_step(size: str, rounds: int) -> list[dict[str, Any]]:
    """Against the published recipe and sorted micro-batches, and the share of the machine's peak."""
    reuse_freed_memory()  # as every training does; the other sides have it here too
    torch.manual_seed(0)
    texts, labels = draw_texts(BATCH * (1 + NOISE_RATIO)), torch.arange(BATCH) % 2
    published, plain, ours = SIZES[size](), SIZES[size](), SIZES[size]()
    trainer = our_trainer(ours, "hidden")
    times = in_turns(
        {
            "published": lambda: published_step(published, texts, labels),
            "sorted": lambda: sorted_step(plain, texts),
            "ours": lambda: our_step(trainer, texts, labels),
        },
        rounds,
    )
    precision = "bf16" if use_bf16("auto") else "fp32"
    top = peak(torch.bfloat16 if precision == "bf16" else torch.float32)
    name, seconds = f"training step, {size} size, {precision}", times["ours"]
    return [
        {"name": name, "ratio": times["published"] / seconds, "goal": GOALS[size][precision],
         "reference": "published recipe, fp32", "seconds": seconds,
         "tokens_per_second": sum(map(len, texts)) / seconds},
        {"name": f"{name}, share of the matmul peak", "ratio": useful_flops(ours, texts) / seconds / top, "goal": 0.65,
         "reference": f"{top / 1e9:.0f} GFLOP/s in {precision}"},
        {"name": f"{name}, against sorted micro-batches", "ratio": times["sorted"] / seconds, "goal": 1.4,
         "reference": f"length-sorted micro-batches, {precision}"},
    ]  # fmt: skip


def measure_plain_step(size: str, rounds: int) -> list[dict[str, Any]]:
    """A plain finetuning step against the stock Trainer with its default collator, over eight batches."""
    torch.manual_seed(0)
    steps, labels = [draw_texts(BATCH, seed=i) for i in range(8)], torch.arange(BATCH) % 2
    stock, ours = SIZES[size](), our_trainer(SIZES[size](), "baseline")
    trainer = Trainer(stock, TrainingArguments(tempfile.mkdtemp(), use_cpu=True, report_to="none"))
    trainer.current_gradient_accumulation_steps = 1

    def theirs() -> None:
        for texts in steps:
            inputs = padded_inputs(stock, pack([Tokens(t, np.zeros(len(t))) for t in texts]))
            trainer.training_step(stock, inputs | {"labels": labels})
            stock.zero_grad()

    def mine() -> None:
        for texts in steps:
            our_step(ours, texts, labels)

    times = in_turns({"stock": theirs, "ours": mine}, rounds)
    precision = "bf16" if use_bf16("auto") else "fp32"
    return [
        {"name": f"plain finetuning step, {size} size, {precision}", "ratio": times["stock"] / times["ours"], "goal": 2,
         "reference": "transformers.Trainer, default collator, fp32", "seconds": times["ours"] / len(steps)}
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = measure_plain_step("minilm", options.rounds)
    for size in options.size or SIZES:
        results += measure_joint_step(size, options.rounds)
    publish("training", results)


if __name__ == "__main__":
    with quiet():
        main()
