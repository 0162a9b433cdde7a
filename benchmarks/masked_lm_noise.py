"""Does it matter that a masked LM fills in words without seeing each other? Noise of `mlm` by rounds and order.

    python benchmarks/masked_lm_noise.py [--steps 1000] [--threads 2]

No encoder with its masked-LM head is at hand here, so MiniLM is given one: head and encoder are trained to fill in
masked tokens of sentences on films (IMDB, and Rotten Tomatoes but for those that are measured), some forty minutes
of one core; interrupted, it goes on from its last look. Then 300 other sentences of Rotten Tomatoes are rewritten,
M = 0.4, in so many rounds and orders. Shown are how surprised SmolLM2-135M, which reads them from the left, is by a
token (nats; words that were filled in blindly should fit each other less), and how often a probe of the untouched
encoder tells the texts from 300 more. Writes `results/noise/mlm.json` and `tables/mlm.md`.
"""

import argparse
import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from ebmcal.data.builtin import reviews_file
from ebmcal.models.loading import ENCODERS, load_encoder, load_language_model, load_tokenizer, quiet
from ebmcal.models.masked import HEADS
from ebmcal.models.memory import reuse_freed_memory
from ebmcal.models.packing import Pack, pack, packed_states, use_packing
from ebmcal.models.scoring import features
from ebmcal.models.tokens import tokenize_in_memory
from ebmcal.noise.hardness import probe
from ebmcal.noise.lm import prepare_training, token_losses
from ebmcal.noise.mlm import masked_lm
from ebmcal.noise.sources import Splice
from ebmcal.storage.atomic import write_text, writing
from ebmcal.training.running import has_fast_bf16
from study_tables import markdown

FOLDER = Path("results/noise")
N, WORDS = 300, (10, 30)
BATCH, MASKED_SHARE, LEARNING_RATE, MAX_LENGTH, LOOK_EVERY = 128, 0.3, 5e-4, 48, 100

#: Rounds and order of filling in.
FORMS = ((1, "random"), (2, "random"), (4, "random"), (16, "random"), (4, "left"), (4, "sure"))


def sentences() -> tuple[list[str], list[str]]:
    """To learn from, and of Rotten Tomatoes to be measured on."""
    with open(reviews_file(), encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    own = [row["text"] for row in rows if row["source"] == "rotten_tomatoes"]
    reviews = [re.sub(r"<[^>]*>", " ", row["text"]) for row in rows if row["source"] == "imdb"]
    others = [part for review in reviews for part in re.split(r"(?<=[.!?])\s+", review)]
    rng = np.random.default_rng(0)
    own = _fitting([own[i] for i in rng.permutation(len(own))])
    more = _fitting([others[i] for i in rng.permutation(len(others))])
    return own[2 * N :] + more, own[: 2 * N]


def _fitting(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if WORDS[0] <= len(text.split()) <= WORDS[1]]


def train(texts: list[str], held_out: list[str], steps: int, folder: Path) -> dict[str, Any]:
    """Give MiniLM a masked-LM head, with the encoder finetuned for it; returns what it reached."""
    card, checkpoint = folder / "card.json", folder / "checkpoint.pt"
    if card.exists() and json.loads(card.read_text())["steps"] == steps:
        return json.loads(card.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tokenizer = load_tokenizer("minilm")
    model = AutoModelForMaskedLM.from_pretrained(ENCODERS["minilm"].path(), use_safetensors=True, dtype=torch.float32)
    use_packing(model)
    special = torch.tensor(tokenizer.all_special_ids)

    def losses(chosen: Sequence[str]) -> Tensor:
        ids = tokenizer(list(chosen), truncation=True, max_length=MAX_LENGTH)["input_ids"]
        batch = pack([np.array(row) for row in sorted(ids, key=len)])
        masked = (torch.rand(batch.input_ids.shape) < MASKED_SHARE) & ~torch.isin(batch.input_ids, special)
        hidden = Pack(torch.where(masked, tokenizer.mask_token_id, batch.input_ids), batch.token_types, batch.lengths)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bf16()):
            logits = HEADS["bert"](model, packed_states(model, hidden)[0, masked])
        return F.cross_entropy(logits.float(), batch.input_ids[masked], reduction="none")

    @torch.no_grad()
    def look() -> float:
        model.eval()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            found = torch.cat([losses(held_out[i : i + BATCH]) for i in range(0, N, BATCH)]).mean().item()
        model.train()
        return round(found, 3)

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    curve = {"0": look()}
    parts = {"model": model, "optimizer": optimizer, "rate": rate}
    if checkpoint.exists():
        found = torch.load(checkpoint, weights_only=True)
        curve = found.pop("curve")
        for name, state in found.items():
            parts[name].load_state_dict(state)
    for step in range(int(max(curve, key=int)) + 1, steps + 1):
        torch.manual_seed(step)
        rng = np.random.default_rng([0, step])
        loss = losses([texts[i] for i in rng.integers(len(texts), size=BATCH)]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(), rate.step(), optimizer.zero_grad()
        if step % LOOK_EVERY == 0:
            curve[str(step)] = look()
            print(f"step {step} of {steps}: loss of held-out masked tokens {curve[str(step)]}", flush=True)
            with writing(checkpoint) as aside:
                torch.save({"curve": curve} | {name: part.state_dict() for name, part in parts.items()}, aside)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    facts = {"steps": steps, "batch": BATCH, "sentences": len(texts), "held_out_loss": curve}
    write_text(card, json.dumps(facts, indent=2))
    checkpoint.unlink()
    return facts


@torch.no_grad()
def surprise(texts: list[str]) -> float:
    """Mean loss of SmolLM2 on a token of these texts, behind an end of text."""
    model, tokenizer = load_language_model("smollm2")
    prepare_training(model)
    model.eval()
    ids = [np.array([tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]) for text in texts]
    ids.sort(key=len)
    parts = [ids[i : i + 16] for i in range(0, len(ids), 16)]
    losses = [token_losses(model, part, [np.ones(len(row), dtype=bool) for row in part]) for part in parts]
    return torch.cat(losses).mean().item()


class Rows:
    """Texts as a source of noise sees them."""

    is_pair = False

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.labels = texts, np.full(len(texts), -1)

    def __len__(self) -> int:
        return len(self.texts)

    def rows(self, indices: Any) -> list[tuple[str, str | None]]:
        return [(self.texts[int(i)], None) for i in indices]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/masked-lm"), help="where the masked LM is kept")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reuse_freed_memory()
    texts, own = sentences()
    facts = train(texts, own[:N], options.steps, options.folder)
    measured, others = own[:N], own[N:]
    generators = [np.random.default_rng([0, i]) for i in range(N)]
    kinds: dict[str, list[str]] = {"data": measured}
    for rounds, order in FORMS:
        lm = masked_lm(str(options.folder), rounds=rounds, order=order, max_length=MAX_LENGTH)
        fresh = [np.random.default_rng([0, i]) for i in range(N)]
        kinds[f"mlm, {rounds} round{'s' * (rounds > 1)}, {order}"] = [
            text for text, _ in lm.rewrite([(text, None) for text in measured], fresh)
        ]
    kinds["splice"] = [Splice().write(Rows(measured), rng).row[0] for rng in generators]
    encoder, tokenizer = load_encoder("minilm", ("0", "1")), load_tokenizer("minilm")
    use_packing(encoder)

    def seen(some: list[str]) -> np.ndarray:
        return features(encoder, tokenize_in_memory([(text, None) for text in some], tokenizer, MAX_LENGTH))

    data = seen(others)
    rows = []
    for kind, written in kinds.items():
        told = None if kind == "data" else round(probe(data, seen(written)), 3)
        rows.append({"texts": kind, "surprise": round(surprise(written), 3), "probe": told, "examples": written[:2]})
        print(rows[-1], flush=True)
    (FOLDER / "tables").mkdir(parents=True, exist_ok=True)
    write_text(FOLDER / "mlm.json", json.dumps({"masked_lm": facts, "rows": rows}, indent=2) + "\n")
    head = ["texts", "SmolLM2's loss on a token", "told apart by the untouched encoder", "example"]
    lines = [
        [r["texts"], f"{r['surprise']:.2f}", "" if r["probe"] is None else f"{r['probe']:.2f}", r["examples"][0]]
        for r in rows
    ]
    write_text(FOLDER / "tables" / "mlm.md", markdown([head, *lines]))


if __name__ == "__main__":
    with quiet():
        main()
