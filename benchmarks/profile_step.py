"""Where the time of our training step goes: operations of one step under torch's profiler, gathered in groups.

    python benchmarks/profile_step.py [--size minilm] [--threads 2]

Prints a Markdown table and writes `profile.json`. K = 8, lengths of SST-2, optimizer step included.
"""

import argparse
import json
import re

import torch
from torch.profiler import ProfilerActivity, profile

from ebmcal.models.loading import quiet
from timing import HERE
from training import SIZES, make_steps, our_step, our_trainer

#: Group -> pattern of the operations in it; the first that matches counts.
GROUPS = {
    "linear layers (matrix products)": r"aten::(mm|addmm|linear)$",
    "attention": r"aten::(bmm|baddbmm|_?softmax.*|.*softmax_backward.*|_scaled_dot.*|scaled_dot.*)$|.*flash.*",
    "dropout (random numbers)": r"aten::(bernoulli_|native_dropout.*)$",
    "GELU": r"aten::gelu.*",
    "layer norm": r"aten::native_layer_norm.*",
    "embeddings and clearing gradients": r"aten::(embedding.*|index_select|fill_|zero_|index_put.*|_index_put.*)$",
    "optimizer": r".*([Aa]dam|foreach).*",
    "sums, products, copies": r"aten::(add_?|mul_?|div_?|sub_?|sum|copy_|cat|where|neg|pow)$",
}


def group_of(name: str) -> str:
    return next((group for group, pattern in GROUPS.items() if re.match(pattern, name)), "other operations, Python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="minilm")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    trainer, (step,) = our_trainer(SIZES[options.size]()), make_steps()
    optimizer = trainer.create_optimizer()

    def once() -> None:
        trainer.training_step(trainer.wrapped, step)
        optimizer.step()
        optimizer.zero_grad()

    our_step(trainer, step)
    once()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        once()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        group = group_of(event.key)
        times[group] = times.get(group, 0.0) + event.self_cpu_time_total
    total = sum(times.values())
    shares = {group: time / total for group, time in sorted(times.items(), key=lambda item: -item[1])}
    print("| operations | share of a step |\n|---|---|")
    for group, share in shares.items():
        print(f"| {group} | {share:.1%} |")
    (HERE / "profile.json").write_text(json.dumps({"size": options.size, "shares": shares}, indent=2) + "\n")


if __name__ == "__main__":
    with quiet():
        main()
