"""Tiny random encoders and language models, built from config objects: no network, a few thousand weights.

Tokenizers are trained on `SENTENCES`. Dropout is off, so that two implementations can be compared.
"""

from pathlib import Path

import numpy as np
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_SUBJECTS = ["the film", "a slow story", "her first novel", "this meal", "the old phone", "their new song"]
_VERBS = ["is", "was never", "feels", "will not be"]
_ENDS = [
    "worth the time.",
    "dull, but honest.",
    "a joy from start to end!",
    "broken in three places",
    "what we wanted.",
]
SENTENCES = [f"{s} {v} {e}" for s in _SUBJECTS for v in _VERBS for e in _ENDS]

VOCABULARY, POSITIONS = 120, 64

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": POSITIONS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_DISTILBERT = {
    "vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32,
    "max_position_embeddings": POSITIONS, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
}  # fmt: skip

#: model type -> (name of its classes, settings)
ENCODERS = {
    "bert": ("Bert", _SHAPE),
    "roberta": ("Roberta", _SHAPE | {"pad_token_id": 1}),
    "electra": ("Electra", _SHAPE | {"embedding_size": 8}),
    "distilbert": ("DistilBert", _DISTILBERT),
    "xlm-roberta": ("XLMRoberta", _SHAPE | {"pad_token_id": 1}),
    "camembert": ("Camembert", _SHAPE | {"pad_token_id": 1}),
    "mpnet": ("MPNet", _SHAPE | {"pad_token_id": 1}),
    "albert": ("Albert", _SHAPE | {"embedding_size": 8}),
}

_LM_SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 0,
    "pad_token_id": 0,
}  # fmt: skip
_GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_OPT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "word_embed_proj_dim": 32, "dropout": 0.0,
}  # fmt: skip
LANGUAGE_MODELS = {
    "gpt2": ("GPT2LMHeadModel", hf.GPT2Config, _GPT2),
    "llama": ("LlamaForCausalLM", hf.LlamaConfig, _LM_SHAPE | {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", hf.Qwen2Config, _LM_SHAPE | {"num_key_value_heads": 2}),
    "mistral": ("MistralForCausalLM", hf.MistralConfig, _LM_SHAPE | {"num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", hf.GPTNeoXConfig, _LM_SHAPE),
    "opt": ("OPTForCausalLM", hf.OPTConfig, _OPT),
}


def make_encoder(kind: str, n_labels: int = 3, seed: int = 0, scale: float = 8.0, **changes):
    """A sequence classifier whose weights are large enough for its logits to differ from text to text."""
    name, settings = ENCODERS[kind]
    config = getattr(hf, f"{name}Config")(**settings | {"num_labels": n_labels} | changes)
    torch.manual_seed(seed)
    return _scaled(getattr(hf, f"{name}ForSequenceClassification")(config), scale).eval()


def make_language_model(kind: str, seed: int | None = 0, scale: float = 8.0, **changes):
    """A causal LM; without a seed its weights are drawn from torch's generator as it is."""
    name, config, settings = LANGUAGE_MODELS[kind]
    if seed is not None:
        torch.manual_seed(seed)
    return _scaled(getattr(hf, name)(config(**settings | changes)), scale).eval()


def _scaled(model, scale):
    """Fresh models have weights of 0.02: outputs hardly depend on the input, and a comparison would show nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter *= scale
            elif "bias" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def make_wordpiece(texts=SENTENCES):
    """A BERT-like tokenizer: pairs have segment numbers. Its words are those of `texts`, others are spelt out."""
    words = {word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(" ".join(texts))}
    letters = "abcdefghijklmnopqrstuvwxyz"
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*marks, *letters, *(f"##{letter}" for letter in letters), *sorted(words - set(letters))]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_max_length=POSITIONS, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def save_encoder(folder: Path, kind: str = "bert", **changes) -> Path:
    """A folder as `save_pretrained` leaves it: encoder and tokenizer."""
    make_encoder(kind, **changes).save_pretrained(folder)
    make_wordpiece().save_pretrained(folder)
    return folder


def train_tokenizer(texts=SENTENCES):
    """Byte-level BPE, as GPT-2's: every text can be encoded, and decoding gives it back to the byte."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, end = pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, pad_token=end)


def save_language_model(folder: Path, kind: str = "llama", texts=SENTENCES) -> Path:
    """A causal LM with random weights and a vocabulary of `texts`, as a user's local model folder."""
    tokenizer = train_tokenizer(texts)
    make_language_model(kind, scale=1.0, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_texts(lengths, vocabulary: int = VOCABULARY, seed: int = 0) -> list[np.ndarray]:
    """Token ids above the special ones, one array for each length."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocabulary, size=n) for n in lengths]
