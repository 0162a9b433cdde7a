"""Noise sampling against `generate`, and finetuning the noise LM against the stock Trainer.

    python benchmarks/sampling.py [--lm smollm2] [--lm gpt2] [--precision fp32] [--precision bf16] [--rounds 1]

The bundled SmolLM2-135M (three query heads share keys and values), and the architecture of GPT-2 small with random
weights. Texts of 20 words, four samples each, about as long as their prompt. `generate` runs in batches of 32, in the
given order, until the last row of a batch has ended; it writes a quarter of the prompts, because its batches are
independent. Both stop each row after the same number of tokens, in the same precision; the ratio is one of tokens per
second.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria, Trainer, TrainingArguments

from ebmcal.modeling.packing import Tokens, pack, padded_inputs
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import load_language_model, quiet
from ebmcal.noise.causal_lm import Layout, Markers, NoiseLm, NoiseLmTrainer, collate, prepare_training
from ebmcal.noise.sampler import sample
from ebmcal.training.runtime import reuse_freed_memory
from timing import draw_texts, in_turns, peak, publish

#: 20 words are about 26 tokens.
N_PROMPTS, N_SAMPLES, MEAN_LENGTH = 128, 4, 26

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

#: Prompts for `generate`.
N_REFERENCE = 32


@dataclass(frozen=True)
class Size:
    """A language model, tokens that serve as markers and are never drawn, and its layers."""

    title: str
    build: Callable[[], nn.Module]
    markers: Markers
    layers: Callable[[nn.Module], nn.Module]


SIZES = {
    "smollm2": Size(
        "SmolLM2-135M", lambda: load_language_model("smollm2")[0], Markers(3, 5, 6, end=4), lambda m: m.model.layers
    ),
    "gpt2": Size(
        "GPT-2 small size", lambda: GPT2LMHeadModel(GPT2Config()), Markers(50256, 50255, 50254, end=50253),
        lambda m: m.transformer.h,
    ),
}  # fmt: skip


def copies(size: Size) -> tuple[nn.Module, nn.Module]:
    """The same weights twice."""
    torch.manual_seed(0)
    first, second = size.build(), size.build()
    second.load_state_dict(first.state_dict())
    return first, second


def n_weights(size: Size, model: nn.Module) -> tuple[int, int]:
    """Of the layers, and of the head."""
    return sum(p.numel() for p in size.layers(model).parameters()), model.get_output_embeddings().weight.numel()


class Ends(StoppingCriteria):
    """Ends each row after its own number of tokens."""

    def __init__(self, lengths: Sequence[int], prompt: int) -> None:
        self.stops = torch.tensor(lengths) + prompt

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self.stops


def measure_sampling(size: Size, precision: str, rounds: int) -> list[dict[str, Any]]:
    model, ours = copies(size)
    dtype = DTYPES[precision]
    model.eval().to(dtype), ours.eval().to(dtype)
    prompts = [text.tolist() for text in draw_texts(N_PROMPTS, MEAN_LENGTH)]
    rng = np.random.default_rng(0)
    # Random words hardly ever end; so a row's end is drawn, and both sides stop there.
    lengths = [np.maximum(3, len(p) * rng.normal(1, 0.15, N_SAMPLES)).astype(int).tolist() for p in prompts]
    layouts = [Layout(prompt, []) for prompt in prompts]
    uniforms = [[np.random.default_rng([i, k]).random(n) for k, n in enumerate(ns)] for i, ns in enumerate(lengths)]
    lm = NoiseLm(ours, None, size.markers, "infill", 0.4)
    end = size.markers.end

    @torch.inference_mode()
    def reference() -> None:
        rows = [(p, n) for p, ns in list(zip(prompts, lengths, strict=True))[:N_REFERENCE] for n in ns]
        for start in range(0, len(rows), 32):
            chunk, stops = zip(*rows[start : start + 32], strict=True)
            longest = max(map(len, chunk))
            ids = torch.tensor([[end] * (longest - len(r)) + r for r in chunk])
            mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in chunk])
            model.generate(
                ids, attention_mask=mask, do_sample=True, top_k=20, max_new_tokens=max(stops), eos_token_id=None,
                pad_token_id=end, stopping_criteria=[Ends(stops, longest)],
            )  # fmt: skip

    times = in_turns({"generate": reference, "ours": lambda: sample(lm, layouts, uniforms)}, rounds, warm_up=False)
    top, n_tokens = peak(dtype), sum(sum(ns) for ns in lengths)
    # Every drawn token and every token of a prompt goes through the layers once; logits are needed for drawn ones.
    layers, head = n_weights(size, ours)
    flops = 2 * (layers * (n_tokens + sum(map(len, prompts))) + head * n_tokens)
    name = f"noise sampling, {size.title}, {precision}"
    theirs = sum(sum(ns) for ns in lengths[:N_REFERENCE]) / times["generate"]  # tokens a second
    return [
        {"name": name, "ratio": n_tokens / times["ours"] / theirs, "goal": 5,
         "reference": "generate in batches of 32", "tokens_per_second": n_tokens / times["ours"]},
        {"name": f"{name}, share of the matmul peak", "ratio": flops / times["ours"] / top,
         "goal": 0.4, "reference": f"{top / 1e9:.0f} GFLOP/s in {precision}",
         "generate_over_peak": n_tokens / theirs * top / flops},  # what the first ratio would be at the peak
    ]  # fmt: skip


def measure_finetuning(
    size: Size, precision: str, rounds: int, n_steps: int = 4, batch: int = 16
) -> list[dict[str, Any]]:
    """Steps of the noise LM in batches of 16, against the stock Trainer with padding and the same loss."""
    stock, ours = copies(size)
    prepare_training(ours)
    lm, rng = NoiseLm(ours, None, size.markers, "infill", 0.4), np.random.default_rng(0)
    texts = draw_texts(n_steps * batch, MEAN_LENGTH)
    items = [lm.lay_out(ids, lm.draw_mask(ids, rng)).to_sequence(size.markers.end) for ids in texts]
    steps = [items[i : i + batch] for i in range(0, len(items), batch)]
    arguments = TrainingArguments(mkdtemp(), use_cpu=True, report_to="none", bf16=precision == "bf16")
    theirs = Trainer(stock, args=arguments)
    mine = NoiseLmTrainer(ours, args=arguments, train_dataset=items, data_collator=collate)
    theirs.current_gradient_accumulation_steps = mine.current_gradient_accumulation_steps = 1
    stock, ours = (trainer.accelerator.prepare_model(trainer.model) for trainer in (theirs, mine))

    def padded() -> None:
        for step in steps:
            ordered = sorted(step, key=lambda item: len(item[0]))
            inputs = padded_inputs(stock, pack([Tokens(ids, np.zeros_like(ids)) for ids, _ in ordered]))
            has_loss = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
            has_loss[inputs["attention_mask"].bool()] = torch.from_numpy(np.concatenate([h for _, h in ordered]))
            theirs.training_step(stock, inputs | {"labels": torch.where(has_loss, inputs["input_ids"], -100)})
            stock.zero_grad()

    def packed() -> None:
        for step in steps:
            mine.training_step(ours, collate(step))
            ours.zero_grad()

    times = in_turns({"padded": padded, "packed": packed}, rounds)
    top = peak(DTYPES[precision])
    n_tokens, n_learned = sum(len(ids) for ids, _ in items), sum(int(has_loss.sum()) for _, has_loss in items)
    layers, head = n_weights(size, ours)
    flops = 6 * (layers * n_tokens + head * n_learned)
    name = f"finetuning the noise LM, {size.title}, {precision}"
    return [
        {"name": name, "ratio": times["padded"] / times["packed"], "goal": 2,
         "reference": "transformers.Trainer, padding to the longest",
         "tokens_per_second": n_tokens / times["packed"]},
        {"name": f"{name}, share of the matmul peak", "ratio": flops / times["packed"] / top, "goal": 0.6,
         "reference": f"{top / 1e9:.0f} GFLOP/s in {precision}"},
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lm", choices=SIZES, action="append")
    parser.add_argument("--precision", choices=DTYPES, action="append")
    parser.add_argument("--only", choices=("sampling", "finetuning"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reuse_freed_memory()  # as every training and sampling does; the peers have it here too
    load, results = os.getloadavg()[0], []
    for name, precision in product(options.lm or SIZES, options.precision or ("fp32", "bf16")[: 1 + use_bf16("auto")]):
        if options.only != "finetuning":
            results += measure_sampling(SIZES[name], precision, options.rounds)
        if options.only != "sampling":
            results += measure_finetuning(SIZES[name], precision, options.rounds)
    publish("sampling", [row | {"load_before": round(load, 1)} for row in results])


if __name__ == "__main__":
    with quiet():
        main()
