"""A training step against the published recipe, and noise sampling against `generate`, on the same weights and texts.

    python benchmarks/training.py [--size minilm|roberta-base] [--rounds 3]

The recipe pads every text to 128 tokens and runs data and each of the K noise batches in passes of their own, in fp32.
Both sides take turns in one run; the ratio is the recipe's time over ours. Texts are random tokens with the lengths of
SST-2 (mean 13 with the two marks); weights are random, of the size named: speed does not depend on their values.
Writes `training.json` beside itself, with the matmul peak measured in the same run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    TrainingArguments,
)

from ebmcal import losses
from ebmcal.classifier import EnergyClassifier
from ebmcal.energies import hidden
from ebmcal.masking import Markers, Piece
from ebmcal.methods import METHODS, Settings
from ebmcal.noise_lm import NoiseLm
from ebmcal.packing import classify_padded, pack
from ebmcal.sampling import sample
from ebmcal.trainer import JointTrainer
from ebmcal.training import has_fast_bf16, uses_bf16

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


def draw_texts(n: int, seed: int = 0) -> list[np.ndarray]:
    """Token arrays with lengths like SST-2's training phrases: 3 to 60, mean 13, a long tail."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.round(np.exp(rng.normal(2.35, 0.65, size=n))), 3, 60).astype(int)
    return [rng.integers(1000, 20000, size=length) for length in lengths]


def make_step() -> dict[str, Any]:
    texts = draw_texts(BATCH * (1 + NOISE_RATIO))
    labels = np.concatenate([np.arange(BATCH) % 2, np.full(BATCH * NOISE_RATIO, -1)])
    return {"ids": texts, "types": [np.zeros(len(t), dtype=np.int64) for t in texts], "labels": labels}


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


def our_trainer(model: torch.nn.Module, precision: str) -> JointTrainer:
    args = TrainingArguments(
        "unused", per_device_train_batch_size=BATCH, use_cpu=not torch.cuda.is_available(),
        bf16=uses_bf16(precision), report_to="none",
    )  # fmt: skip
    collator = type("NoData", (), {"data": None, "labels": None})()
    trainer = JointTrainer(
        EnergyClassifier(model, "hidden"), method=METHODS["hidden"], settings=Settings(NOISE_RATIO), collator=collator,
        args=args,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.wrapped = trainer.accelerator.prepare_model(trainer.model)
    return trainer


def our_step(trainer: JointTrainer, step: dict[str, Any]) -> None:
    trainer.training_step(trainer.wrapped, step)
    trainer.wrapped.zero_grad()


def sorted_step(model: torch.nn.Module, step: dict[str, Any]) -> None:
    """Length-sorted micro-batches of 32, each padded to its longest: what one would do without packing."""
    lengths = np.array([len(t) for t in step["ids"]])
    for start in range(0, len(lengths), BATCH):
        chosen = np.argsort(lengths, kind="stable")[start : start + BATCH]
        logits = classify_padded(model, pack([step["ids"][i] for i in chosen]))
        (losses.nce_noise_term(hidden(logits), NOISE_RATIO).sum() / BATCH).backward()
    model.zero_grad()


def peak(dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product, best of ten."""
    a, b = (torch.randn(2048, 2048, dtype=dtype) for _ in range(2))
    return 2 * 2048**3 / min(_seconds(lambda: a @ b) for _ in range(10))


def useful_flops(model: torch.nn.Module, step: dict[str, Any]) -> float:
    """6 × parameters of the layers × real tokens, plus attention: what the mathematics needs."""
    layers = sum(p.numel() for p in model.base_model.encoder.parameters())
    lengths = np.array([len(t) for t in step["ids"]])
    config = model.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * float((lengths**2).sum())
    return 6 * layers * float(lengths.sum()) + attention


def baseline_against_trainer(size: str, rounds: int) -> dict[str, Any]:
    """A plain finetuning step against the stock Trainer's, with its default collator (padding to the longest)."""
    from transformers import Trainer

    step = make_step()
    step = {k: v[:BATCH] for k, v in step.items()}
    torch.manual_seed(0)
    stock, ours = SIZES[size](), SIZES[size]()
    args = TrainingArguments("unused", per_device_train_batch_size=BATCH, use_cpu=True, report_to="none")
    trainer = Trainer(stock, args=args)
    trainer.current_gradient_accumulation_steps = 1
    rows = [{"input_ids": t.tolist(), "labels": int(y)} for t, y in zip(step["ids"], step["labels"], strict=True)]
    plain = our_trainer(ours, "auto")
    plain.method = METHODS["baseline"]

    def theirs() -> None:
        trainer.training_step(stock, _pad_rows(rows))
        stock.zero_grad()

    times = in_turns({"stock": theirs, "ours": lambda: our_step(plain, step)}, rounds)
    return {
        "name": f"plain finetuning step, {size} size", "ratio": times["stock"] / times["ours"], "goal": 2,
        "reference": "transformers.Trainer, default collator, fp32",
    }  # fmt: skip


def _pad_rows(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What the default collator does: pad to the longest text of the batch."""
    longest = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (longest - len(r["input_ids"])) for r in rows])
    mask = torch.tensor([[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([r["labels"] for r in rows])}


def measure_step(size: str, rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    step, precision = make_step(), "bf16" if has_fast_bf16() else "fp32"
    recipe, plain, ours = SIZES[size](), SIZES[size](), SIZES[size]()
    trainer = our_trainer(ours, "auto")
    work = {
        "published recipe": lambda: published_step(recipe, step),
        "length-sorted": lambda: sorted_step(plain, step),
        "ours": lambda: our_step(trainer, step),
    }
    times = in_turns(work, rounds)
    top = peak(torch.bfloat16 if precision == "bf16" else torch.float32)
    share = useful_flops(ours, step) / times["ours"] / top
    rows = [
        {"name": f"training step, {size} size", "ratio": times["published recipe"] / times["ours"], "goal": GOALS[size],
         "reference": "published recipe, fp32", "precision": precision, "seconds": times["ours"]},
        {"name": f"training step, {size} size, share of the matmul peak", "ratio": share, "goal": 0.65,
         "reference": f"{top / 1e9:.0f} GFLOP/s in {precision}"},
    ]  # fmt: skip
    if precision == "fp32":  # the sorted step runs in fp32
        ratio = times["length-sorted"] / times["ours"]
        rows.append({"name": f"training step, {size} size", "ratio": ratio, "goal": 1.4,
                     "reference": "length-sorted micro-batches, same precision"})  # fmt: skip
    return rows


def measure_sampling(rounds: int, n_prompts: int = 32, n_samples: int = 8, n_new: int = 25) -> dict[str, Any]:
    """GPT-2 small's architecture, prompts of about 20 tokens, K samples each, `generate` in batches of 32."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(100, 50000, size=int(n)).tolist() for n in rng.integers(14, 27, size=n_prompts)]
    lm = NoiseLm(model, None, Markers(50256, 50255, 50254, 50253), "infill", 0.4)
    layouts = [[Piece([], prompt, [])] for prompt in prompts]
    uniforms = [[np.random.default_rng([i, k]).random(n_new) for k in range(n_samples)] for i in range(n_prompts)]

    @torch.inference_mode()
    def reference() -> None:
        rows = [prompt for prompt in prompts for _ in range(n_samples)]
        for start in range(0, len(rows), 32):
            chunk = rows[start : start + 32]
            longest = max(map(len, chunk))
            ids = torch.tensor([[50256] * (longest - len(r)) + r for r in chunk])
            mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in chunk])
            model.generate(
                ids, attention_mask=mask, do_sample=True, top_k=20, max_new_tokens=n_new, min_new_tokens=n_new,
                pad_token_id=50256,
            )  # fmt: skip

    times = in_turns({"generate": reference, "ours": lambda: sample(lm, layouts, uniforms)}, rounds)
    n_tokens = n_prompts * n_samples * n_new
    return {
        "name": "noise sampling, GPT-2 small size", "ratio": times["generate"] / times["ours"], "goal": 6,
        "reference": "generate in batches of 32, fp32", "tokens_per_second": n_tokens / times["ours"],
    }  # fmt: skip


def in_turns(work: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each; in turns, so that a slow spell of the machine hits all. The first turn is a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 1):
        for name, function in work.items():
            seconds = _seconds(function)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: list[dict[str, Any]] = []
    for size in options.size or ["minilm"]:
        results.append(baseline_against_trainer(size, options.rounds))
        results += measure_step(size, options.rounds)
    results.append(measure_sampling(options.rounds))
    for row in results:
        print(f"{row['name']:55} {row['ratio']:6.2f}  goal {row['goal']:<5} {row['reference']}")
    (Path(__file__).parent / "training.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
