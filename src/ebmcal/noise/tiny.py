"""`tiny`: a small language model trained from scratch on the task's own texts, for machines with no weights.

A byte-level BPE vocabulary is learned from the texts; the model is a small Llama (rotary positions learn the fixed
offsets that the `gaps` layout relies on within minutes). Alone it cannot learn to copy, so its mode is `gaps`.
"""

from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 8000


def build_tiny(texts: Iterable[str]) -> tuple[nn.Module, Any]:
    """A fresh model and its tokenizer. The weights are drawn from torch's global generator: seed it first."""
    tokenizer = train_tokenizer(texts)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config), tokenizer


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Byte-level BPE: every text can be encoded, and decoding gives it back to the byte."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
