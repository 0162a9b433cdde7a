"""A tiny random BERT and short texts, so that the other examples run in seconds without downloads.

Its numbers mean nothing. For real use, replace the directory by `minilm` or a name on the Hugging Face hub.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

NOUNS = ["film", "story", "song", "meal", "phone", "novel", "play", "chair"]
WORDS = {"good": ["great", "lovely", "fine", "funny"], "bad": ["dull", "awful", "broken", "slow"]}


def make_rows(n: int) -> tuple[list[str], list[str]]:
    """Texts and labels; one label in ten is wrong."""
    labels = ["good" if i % 2 else "bad" for i in range(n)]
    texts = [f"the {NOUNS[i % 8]} is {WORDS[label][i % 4]} number {i}" for i, label in enumerate(labels)]
    return texts, [label if i % 10 else "good" for i, label in enumerate(labels)]


def make_encoder(directory: Path, labels: int = 2) -> Path:
    """Save a classifier of a few thousand weights with its tokenizer."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["the", "is", "number", *NOUNS, *WORDS["good"], *WORDS["bad"], *map(str, range(10))]
    vocabulary = [*marks, *words, *(f"##{digit}" for digit in range(10))]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=64,
    )  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, num_labels=labels,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
