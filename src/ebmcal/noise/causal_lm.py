"""The noise LM P_N(x | x^m): a causal language model with three added marker tokens, how texts are masked for it, and
its finetuning.

    mode      the LM reads                   and writes
    infill    the masked text x^m, <WRITE>   the whole text (the paper's noise)
    plain     <WRITE>                        the whole text

In x^m every run of masked tokens is one `<M>`. Each text is followed by the LM's end-of-text token. The sentences of a
pair are joined by `<SEP>`, which is never masked. Finetuning minimises -log P_N(x | x^m), on the tokens of the text
only; every text is masked anew each time. Without a number of steps it stops when the loss on held-out texts stops
falling. `sampler` draws from the LM.

    <root>/<key>/model/         the finished LM, with its card: trained once, then reused
    <root>/<key>/checkpoints/   while training; an interrupted training resumes from the last one
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments
from transformers.activations import NewGELUActivation

from ebmcal.data.splits import ShuffledOrder, TextPair, Texts
from ebmcal.errors import EbmcalError
from ebmcal.modeling.packing import ATTENTION, Tokens, micro_batches, pack, padded_inputs, token_budget, use_packing
from ebmcal.modeling.precision import use_bf16
from ebmcal.modeling.pretrained import load_language_model, quiet
from ebmcal.progress import Reporter
from ebmcal.storage import atomic_write, fingerprint, locked, read_json, remove, write_json
from ebmcal.training import recipe
from ebmcal.training.runtime import checkpoint_step, checkpoints, fit

#: Settings and perplexity of a noise LM, next to its checkpoint.
CARD = "noise_lm.json"

#: Tokens added to the LM's vocabulary, and the texts that their embeddings start from.
MARKERS = {"<M>": " ___", "<SEP>": "\n", "<WRITE>": "\n\n"}

#: Architectures with attention that goes through the interface that packing and decoding plug into.
FAST_ARCHITECTURES = {"gpt2", "llama", "qwen2", "mistral", "gpt_neox"}

#: Evaluate the held-out loss every so many steps; stop unless it fell by this fraction.
EVAL_STEPS, MIN_FALL = 10, 0.05

#: The most passes over the texts without a number of steps.
MAX_EPOCHS = 4

#: Every n-th text is held out, at most so many.
HELD_OUT_EVERY, MAX_HELD_OUT = 20, 64

Ids = list[int]

#: Token ids and which of them have a loss: int [T], bool [T].
TrainingSequence = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Markers:
    """Token ids of the markers and of the LM's own end-of-text token."""

    mask: int
    separator: int
    write: int
    end: int


class Layout(NamedTuple):
    """What the LM reads and writes."""

    prompt: Ids
    target: Ids


def mask_tokens(ids: np.ndarray, ratio: float, rng: np.random.Generator, separator: int) -> np.ndarray:
    """Mask each token with probability `ratio`, at least one and never the separator: ids [n] -> bool [n]."""
    masked = (rng.random(len(ids)) < ratio) & (ids != separator)
    candidates = np.flatnonzero(ids != separator)
    if not masked.any() and len(candidates):
        masked[rng.choice(candidates)] = True  # with nothing masked the LM would copy the text
    return masked


def merge_masks(ids: np.ndarray, masked: np.ndarray, mask_id: int) -> Ids:
    """The masked text x^m: each run of masked tokens becomes one mask token.

    >>> merge_masks(np.array([5, 6, 7, 8]), np.array([False, True, True, False]), mask_id=1)
    [5, 1, 8]
    """
    is_first = masked & ~np.concatenate([[False], masked[:-1]])
    return np.where(masked, mask_id, ids)[~masked | is_first].tolist()


@dataclass(frozen=True)
class NoiseLm:
    """A language model, its tokenizer and how it writes noise. `label_names`: of an LM that reads the label first."""

    model: nn.Module
    tokenizer: Any
    markers: Markers
    mode: str
    mask_ratio: float
    max_length: int = recipe.MAX_LENGTH
    label_names: tuple[str, ...] = ()

    def encode(self, text: TextPair) -> np.ndarray:
        """Token ids of a text, at most `max_length`; the sentences of a pair are joined by the separator."""
        first, second = ([] if t is None else self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in text)
        if text[1] is None:
            return np.array(first[: self.max_length], dtype=np.int64)
        room = self.max_length - 1
        if len(first) + len(second) > room:  # the longer sentence is truncated first
            first = first[: max(room - len(second), room // 2)]
            second = second[: room - len(first)]
        return np.array([*first, self.markers.separator, *second], dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()

    def draw_mask(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Which tokens to mask: bool [n]; none for a plain LM, which does not read the text."""
        if self.mode == "plain":
            return np.zeros(len(ids), dtype=bool)
        return mask_tokens(ids, self.mask_ratio, rng, self.markers.separator)

    def lay_out(self, ids: np.ndarray, masked: np.ndarray, label: int = -1) -> Layout:
        """Prompt and target of a masked text. A prompt starts with end-of-text, then the label if the LM reads one."""
        label_ids = self._label_ids[label] if self.label_names and label >= 0 else []
        prefix = merge_masks(ids, masked, self.markers.mask) if masked.any() else []
        return Layout([self.markers.end, *label_ids, *prefix, self.markers.write], ids.tolist())

    def training_sequence(self, layout: Layout) -> TrainingSequence:
        """Prompt, target and end-of-text, as far as the model can read; the loss is on the last two."""
        ids = np.array([*layout.prompt, *layout.target, self.markers.end], dtype=np.int64)[: self.n_positions]
        return ids, np.arange(len(ids)) >= len(layout.prompt)

    @property
    def n_positions(self) -> int:
        """The most tokens that the model can read."""
        config = self.model.config
        return getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1 << 30

    @cached_property
    def _label_ids(self) -> list[Ids]:
        return [self.tokenizer(f"{name}:\n", add_special_tokens=False)["input_ids"] for name in self.label_names]

    def save(self, directory: Path, card: dict[str, Any]) -> None:
        """Write the checkpoint, its tokenizer and the card into a directory."""
        with quiet():
            self.model.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)
        write_json(directory / CARD, card)

    @classmethod
    def load(cls, directory: Path) -> "NoiseLm":
        """Load what `save` wrote."""
        card = read_json(directory / CARD)
        try:
            with quiet():
                model = AutoModelForCausalLM.from_pretrained(directory, use_safetensors=True, dtype=torch.float32)
                tokenizer = AutoTokenizer.from_pretrained(directory)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise EbmcalError(f"{directory} is not a usable noise LM: {reason} Delete it to train it again.") from error
        settings = (card["mode"], card["mask_ratio"], card["max_length"], tuple(card["label_names"]))
        return cls(model, tokenizer, add_markers(model, tokenizer), *settings)


def add_markers(model: nn.Module, tokenizer: Any) -> Markers:
    """Add the marker tokens if they are missing; each starts from the embedding of a similar text."""
    if tokenizer.eos_token_id is None:
        raise EbmcalError(
            "The language model has no end-of-text token, so its texts would not end. Set eos_token in its "
            "tokenizer_config.json, or use another model such as gpt2 or smollm2."
        )
    similar = {name: tokenizer(text, add_special_tokens=False)["input_ids"] for name, text in MARKERS.items()}
    new = [name for name in MARKERS if name not in tokenizer.get_vocab()]
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKERS)})
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for name in new:
                layer.weight[tokenizer.convert_tokens_to_ids(name)] = layer.weight[similar[name]].mean(dim=0)
    mask, separator, write = (tokenizer.convert_tokens_to_ids(name) for name in MARKERS)
    return Markers(mask, separator, write, end=tokenizer.eos_token_id)


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
        return self.lm.training_sequence(self.lm.lay_out(ids, masked, int(self.texts.labels[row])))


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


@dataclass(frozen=True)
class LmSettings:
    """What the weights of a noise LM depend on besides the texts. With `label_names`, it reads the label first."""

    name: str
    mode: str
    mask_ratio: float = recipe.MASK_RATIO
    steps: int | None = None
    batch_size: int = recipe.LM_BATCH_SIZE
    learning_rate: float = recipe.LM_LEARNING_RATE
    max_length: int = recipe.MAX_LENGTH
    seed: int = 0
    precision: str = "auto"
    trust_remote_code: bool = False
    label_names: tuple[str, ...] = ()

    def key(self, data_fingerprint: str) -> str:
        return fingerprint("noise_lm", asdict(self), data_fingerprint)


def fit_noise_lm(
    settings: LmSettings, texts: Texts, data_fingerprint: str, root: Path, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """Directory and card of the noise LM for these settings and texts; trained unless it exists below `root`."""
    work = root / settings.key(data_fingerprint)
    directory = work / "model"
    if not (directory / CARD).is_file():
        with locked(work, on_wait=lambda owner: reporter.info(f"noise LM: waiting for {owner}, which trains it")):
            if not (directory / CARD).is_file():
                _fit(settings, texts, directory, work / "checkpoints", reporter)
            remove(work / "checkpoints")
    return directory, read_json(directory / CARD)


def _fit(settings: LmSettings, texts: Texts, directory: Path, checkpoint_dir: Path, reporter: Reporter) -> None:
    start = time.monotonic()
    torch.manual_seed(settings.seed)
    model, tokenizer = load_language_model(settings.name, settings.trust_remote_code)
    how = (settings.mode, settings.mask_ratio, settings.max_length, settings.label_names)
    lm = NoiseLm(model, tokenizer, add_markers(model, tokenizer), *how)
    prepare_training(model)
    rows = np.arange(len(texts))
    held_out = rows[::HELD_OUT_EVERY][:MAX_HELD_OUT]
    train = np.setdiff1d(rows, held_out) if len(rows) > HELD_OUT_EVERY else rows
    evaluate = partial(held_out_loss, lm, texts, held_out, use_bf16(settings.precision))
    before = evaluate()
    n_steps = _n_steps(settings, len(train), checkpoint_dir)
    if n_steps:
        plan = MaskedTexts(lm, texts, train, n_steps * settings.batch_size, settings.seed)
        arguments = _training_arguments(settings, n_steps, checkpoint_dir)
        trainer = NoiseLmTrainer(model, args=arguments, train_dataset=plan, data_collator=collate)
        if settings.steps is None:
            trainer.add_callback(StopWhenFlat(evaluate))
        fit(trainer, f"noise LM {settings.name}", reporter)
        n_steps = trainer.state.global_step
    card = asdict(settings) | {
        "steps_done": n_steps,
        "perplexity_before": math.exp(min(before, 50.0)),
        "perplexity": math.exp(min(evaluate(), 50.0)),
        "n_parameters": model.num_parameters(),
        "seconds": round(time.monotonic() - start, 1),
    }
    with atomic_write(directory, directory=True) as temporary:
        lm.save(temporary, card)
    reporter.info(
        f"noise LM {settings.name}: {n_steps} steps, perplexity on held-out texts {card['perplexity_before']:.1f} -> "
        f"{card['perplexity']:.1f}"
    )


def _n_steps(settings: LmSettings, n_texts: int, checkpoint_dir: Path) -> int:
    """The most steps to train; no more than done if the last checkpoint was written when the loss was flat."""
    if settings.steps is not None:
        return settings.steps
    last = next(reversed(checkpoints(checkpoint_dir)), None)
    if last and is_flat(read_json(last / "trainer_state.json")["log_history"]):
        return checkpoint_step(last)
    return max(1, MAX_EPOCHS * n_texts // settings.batch_size)


def _training_arguments(settings: LmSettings, n_steps: int, checkpoint_dir: Path) -> TrainingArguments:
    is_open = settings.steps is None
    return TrainingArguments(
        str(checkpoint_dir), max_steps=n_steps, per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate, weight_decay=0.01, seed=settings.seed,
        lr_scheduler_type="constant_with_warmup" if is_open else "linear",  # a decay needs a known end
        warmup_steps=EVAL_STEPS // 2 if is_open else max(1, n_steps // 20), bf16=use_bf16(settings.precision),
        save_steps=20 * EVAL_STEPS if is_open else max(25, n_steps // 4), save_total_limit=2, logging_steps=1,
        logging_nan_inf_filter=False, use_cpu=not torch.cuda.is_available(), report_to="none", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip


def prepare_training(model: nn.Module) -> None:
    """Use packed attention if possible, and avoid a second gradient of the size of the vocabulary."""
    fuse_activations(model)
    if model.config.model_type in FAST_ARCHITECTURES:
        use_packing(model)
    embeddings = model.get_input_embeddings()
    if embeddings.weight is model.get_output_embeddings().weight and not torch.cuda.is_available():
        embeddings.sparse = True  # added to the dense gradient of the output layer


def fuse_activations(model: nn.Module) -> None:
    """Replace GPT-2's GELU, eight operations in Python, by the same function in torch."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
