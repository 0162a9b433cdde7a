"""Step 2 of LM noise: the loss that the LM is finetuned with, -log P_N(x | x^m) on the target tokens only.

Every text is masked anew each time it is seen. `lm_fit` runs the training.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback

from ebmcal.errors import EbmcalError
from ebmcal.modeling.packing import ATTENTION, Tokens, micro_batches, pack, padded_inputs, token_budget
from ebmcal.noise.causal_lm import NoiseLm
from ebmcal.noise.texts import ShuffledOrder, Texts

#: Evaluate the held-out loss every so many steps; stop unless it fell by this fraction.
EVAL_STEPS, MIN_FALL = 10, 0.05

#: Token ids and which of them have a loss: int [T], bool [T].
TrainingSequence = tuple[np.ndarray, np.ndarray]


class MaskedTexts(Dataset):
    """Item p is the text and the mask at position p of the training, a pure function of the seed and p."""

    def __init__(self, lm: NoiseLm, texts: Texts, rows: np.ndarray, n_items: int, seed: int) -> None:
        self.lm, self.texts, self.rows, self.n_items, self.seed = lm, texts, rows, n_items, seed
        self._order = ShuffledOrder(len(rows), seed)

    def __len__(self) -> int:
        return self.n_items

    def __getitem__(self, position: int) -> TrainingSequence:
        row = int(self.rows[self._order[position]])
        ids = self.lm.encode(self.texts[[row]][0])
        masked = self.lm.draw_mask(ids, np.random.default_rng([self.seed, 7, position]))
        layout = self.lm.lay_out(ids, masked, int(self.texts.labels[row]))
        sequence, has_loss = layout.to_sequence(self.lm.markers.end)
        return sequence[: self.lm.n_positions], has_loss[: self.lm.n_positions]


def token_losses(model: nn.Module, sequences: Sequence[TrainingSequence]) -> Tensor:
    """-log P of every token with a loss, except the first of a sequence: [m]. Sequences are given shortest first.

    Packed if the architecture allows it; then logits are computed only where there is a loss.
    """
    batch = pack([Tokens(ids, np.zeros_like(ids)) for ids, _ in sequences]).to(model.device)
    has_loss = torch.from_numpy(np.concatenate([has_loss for _, has_loss in sequences])).to(model.device)
    has_loss[batch.first_tokens()] = False  # there is no token before
    targets = has_loss.nonzero().squeeze(1)  # [m]
    if model.config._attn_implementation == ATTENTION:
        inputs = {"input_ids": batch.input_ids[None], "position_ids": batch.positions()[None], "groups": batch.groups}
        logits = model(**inputs, logits_to_keep=targets - 1, use_cache=False).logits[0]  # [m, V]
    else:
        inputs = padded_inputs(model, batch)
        logits = model(**inputs, use_cache=False).logits[inputs["attention_mask"].bool()][targets - 1]
    return F.cross_entropy(logits.float(), batch.input_ids[targets], reduction="none")


class NoiseLmTrainer(Trainer):
    """Minimises the mean loss of the target tokens of a batch, in micro-batches under a token budget."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        model.train()
        sequences: list[TrainingSequence] = inputs["sequences"]
        n_tokens = max(1, sum(int(has_loss[1:].sum()) for _, has_loss in sequences))
        total = torch.zeros((), device=model.device)
        for chosen in micro_batches(np.array([len(ids) for ids, _ in sequences]), token_budget(model.config)):
            loss = token_losses(model, [sequences[i] for i in chosen]).sum() / n_tokens
            self.accelerator.backward(loss)
            total += loss.detach()
        if not torch.isfinite(total):
            raise EbmcalError(
                f"The training of the noise LM diverged at step {self.state.global_step + 1}: the loss is {total:.3g}. "
                "Use a smaller learning rate for the noise LM."
            )
        return total

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler:
        return SequentialSampler(self.train_dataset)  # the order is that of `MaskedTexts`


def collate(sequences: list[TrainingSequence]) -> dict[str, Any]:
    """A batch of `NoiseLmTrainer`."""
    return {"sequences": sequences}


@torch.no_grad()
def held_out_loss(lm: NoiseLm, texts: Texts, rows: np.ndarray, bf16: bool = False) -> float:
    """The mean loss on texts, always with the same masks."""
    lm.model.eval()
    masked = MaskedTexts(lm, texts, rows, len(rows), seed=0)
    sequences = [masked[i] for i in range(len(rows))]
    with torch.autocast(lm.model.device.type, torch.bfloat16, enabled=bf16):
        batches = micro_batches(np.array([len(ids) for ids, _ in sequences]), budget=2048)
        return float(torch.cat([token_losses(lm.model, [sequences[i] for i in batch]) for batch in batches]).mean())


class StopWhenFlat(TrainerCallback):
    """Stops when the held-out loss stops falling. Its memory is the Trainer's log, which checkpoints contain."""

    def __init__(self, evaluate: Callable[[], float]) -> None:
        self.evaluate = evaluate

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % EVAL_STEPS == 0:
            state.log_history.append({"held_out_loss": self.evaluate(), "step": state.global_step})
            control.should_training_stop = control.should_training_stop or is_flat(state.log_history)


def is_flat(log: Sequence[dict[str, float]]) -> bool:
    """Whether the last held-out loss of a log is not clearly below the best one before it.

    >>> is_flat([{"held_out_loss": 3.0}, {"held_out_loss": 2.0}]), is_flat([{"held_out_loss": 2.0}] * 2)
    (False, True)
    """
    *earlier, last = [line["held_out_loss"] for line in log if "held_out_loss" in line] or [0.0]
    return bool(earlier) and last > (1 - MIN_FALL) * min(earlier)
