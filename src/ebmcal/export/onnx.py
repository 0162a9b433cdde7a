"""`export_onnx`: a model as an ONNX file for onnxruntime, verified against PyTorch before the directory appears.

    logits  f(x)[y] / T      their softmax is the calibrated P(y|x)
    energy  Ê(x) of the model as it was trained: of f(x), not of f(x) / T

The stock attention of transformers is exported, with padding; packing exists only in torch. The optional int8 file
comes with its cost: accuracy and calibration on the same rows, with intervals.
"""

import contextlib
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ebmcal import metrics
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.model import Model, find_model, load
from ebmcal.modeling.classifier import EnergyClassifier
from ebmcal.modeling.packing import encoder_config
from ebmcal.predictions import Predictions, softmax
from ebmcal.progress import make_reporter
from ebmcal.run_dir import predictions_of_model
from ebmcal.storage import PathLike, atomic_write, write_json

TOKENIZER, MODEL, INT8 = "tokenizer.json", "model.onnx", "model_int8.onnx"
RECORD = "export.json"  # what was verified, on how many texts, and the cost of int8

#: Largest allowed difference of probabilities, and of energies (relative above 1).
TOLERANCE = 1e-4

#: Bytes of weights above which they are stored next to the graph: an ONNX file holds at most two gigabytes.
MAX_EMBEDDED = 1_500_000_000

#: Inputs of the graph by the attributes of the tokenizer's output.
INPUTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

BATCH_SIZE = 16
COST_METRICS = ("accuracy", "ece_top_label", "ece_classwise", "nll")

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Export:
    """What was written, and the result of the verification; `print` summarises it."""

    directory: Path
    record: dict[str, Any]

    def __str__(self) -> str:
        found = self.record
        differences = ", ".join(f"{name} {value:.1e}" for name, value in found["max_difference"].items())
        calibrated = f"temperature {found['temperature']:.4g} included" if found["temperature"] else "not calibrated"
        lines = [
            f"{self.directory / MODEL}: {self._size(MODEL)}, {calibrated}. Verified on {found['n_texts']:,} texts of "
            f"{found['texts']}; largest difference to PyTorch: {differences}."
        ]
        if found.get("int8"):
            lines += [f"{self.directory / INT8}: {self._size(INT8)}; {line}" for line in _cost_lines(found["int8"])]
        if found["has_rule"]:
            lines.append("The abstention rule is not part of the export: only ebmcal applies it (predict, serve).")
        return "\n".join(lines)

    def _size(self, name: str) -> str:
        return f"{(self.directory / name).stat().st_size / 1e6:.1f} MB"


def export_onnx(
    model: Model | PathLike,
    directory: PathLike,
    *,
    energy: bool = False,
    int8: bool = False,
    data: Any = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    max_rows: int = 500,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Export:
    """Write `model.onnx` (temperature included), `tokenizer.json` and `config.json` into a directory.

    The ONNX model is compared with PyTorch on real texts: `data` (anything that `Model.predict` takes) or the test
    split of the model's run. The directory is created only if they agree. `energy` adds a second output. `int8` adds
    `model_int8.onnx`; its cost is measured on the same rows if they have labels.

        ebmcal.export_onnx("runs/a", "exported", energy=True)
    """
    require_extra("onnx", "onnx", "onnxruntime", "onnxscript")
    directory = Path(directory).expanduser()
    _check_directory(directory, overwrite)
    folder = model.folder if isinstance(model, Model) else find_model(model)
    if data is None:
        _test_file(folder)  # raises before the model is loaded
    elif isinstance(data, str | Path) and not Path(data).is_file():
        raise EbmcalError(f"{data} does not exist; expected a file of texts.")
    loaded = model if isinstance(model, Model) else load(folder, device="cpu")
    temperature = _temperature(loaded)
    columns = {"text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column}
    source, rows = _sample_rows(loaded, data, columns, max_rows)
    texts: list[Any] = list(zip(rows.texts, rows.text_pairs, strict=True) if rows.text_pairs else rows.texts)  # type: ignore[arg-type]
    with atomic_write(directory, directory=True) as temporary:
        _write_files(temporary, loaded, temperature, energy)
        with make_reporter(progress).stage("Verifying against PyTorch", rows.n_rows * (1 + int8)) as advance:
            plain = OnnxSession(temporary).predict(texts, advance)
            record: dict[str, Any] = {
                "model": folder.name, "label_names": list(loaded.label_names),
                "temperature": temperature if temperature != 1 else loaded.folded_temperature,
                "max_length": loaded.max_length, "texts": source, "n_texts": rows.n_rows,
                "max_difference": _verify(plain, rows),
                "has_rule": loaded.fitted_rule is not None or "abstention" in loaded.card,
            }  # fmt: skip
            if int8:
                _quantize(temporary)
                small = OnnxSession(temporary, INT8).predict(texts, advance)
                record["int8"] = _cost(small["logits"], plain["logits"], rows)
        write_json(temporary / RECORD, record)
    return Export(directory, record)


def _check_directory(directory: Path, overwrite: bool) -> None:
    if directory.suffix.lower() == ".onnx" or directory.is_file():
        files = f"{MODEL}, {TOKENIZER} and config.json are written into it"
        raise EbmcalError(f"{directory}: expected a directory, not a file: {files}.")
    if directory.is_dir() and any(directory.iterdir()):
        if not (directory / RECORD).is_file():
            raise EbmcalError(f"{directory} exists and is not an export. Choose another directory.")
        if not overwrite:
            raise EbmcalError(f"{directory} holds an export already. Pass --overwrite, or choose another directory.")


def _test_file(folder: Path) -> Path:
    path = predictions_of_model(folder, "test")
    if path is None:
        raise EbmcalError(
            f"{folder} has no test split of a run to verify the export on. Pass texts like those it will see: data "
            "(--data FILE, with --label-column to measure the cost of int8)."
        )
    return path


def _temperature(model: Model) -> float:
    temperature = getattr(model.calibrator, "temperature_", None)
    if model.calibrator is not None and temperature is None:
        raise EbmcalError(
            f"{model.folder} is calibrated by {model.calibrator.name}, but only a temperature can be part of the "
            "graph. Calibrate with it first: ebmcal calibrate MODEL --predictions FILE --calibrator temperature"
        )
    return 1.0 if temperature is None else float(temperature)


def _sample_rows(model: Model, data: Any, columns: dict[str, str | None], max_rows: int) -> tuple[str, Predictions]:
    """A name of the texts, and what PyTorch predicts for a sample of them, with their labels."""
    texts: Sequence[Any]
    if data is None:
        stored = Predictions.read(_test_file(model.folder), label_names=model.label_names)
        name, labels, texts = "the test split", stored.labels, stored.texts or []
        texts = list(zip(texts, stored.text_pairs, strict=True)) if stored.text_pairs else texts
    else:
        name = Path(data).name if isinstance(data, str | Path) else "the data"
        texts, labels, _ = model.read_rows(data, **columns)
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:max_rows])
    return name, model.predict([texts[i] for i in chosen]).replace(labels=labels[chosen])


def _write_files(directory: Path, model: Model, temperature: float, energy: bool) -> None:
    from tokenizers import Tokenizer

    stock = model.predictor.tokenizer
    backend = getattr(stock, "backend_tokenizer", None)
    if backend is None:
        raise EbmcalError(f"The tokenizer of {model.folder} has no fast version (tokenizer.json), which ONNX needs.")
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.enable_truncation(model.max_length)
    tokenizer.enable_padding(pad_id=model.predictor.classifier.config.pad_token_id or 0, pad_token=stock.pad_token)
    tokenizer.save(str(directory / TOKENIZER))
    shutil.copy(model.folder / "config.json", directory / "config.json")
    classifier = EnergyClassifier.from_pretrained(model.folder)  # a copy, because its attention is changed
    exported = ExportedClassifier(classifier, temperature, model.folded_temperature or 1.0, energy)
    try:
        write_graph(directory / MODEL, exported, model.max_length)
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        reason = " ".join(str(error).split())[:300]
        raise EbmcalError(f"PyTorch cannot export a {type(classifier.encoder).__name__} to ONNX: {reason}") from error


class ExportedClassifier(nn.Module):
    """What is exported. `folded` is a temperature that the last layer was divided by before, 1 if none."""

    def __init__(self, classifier: EnergyClassifier, temperature: float, folded: float, energy: bool) -> None:
        super().__init__()
        self.classifier, self.temperature, self.folded, self.energy = classifier, temperature, folded, energy

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits = self.classifier.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).logits  # [n, C]
        if not self.energy:
            return logits / self.temperature
        return logits / self.temperature, self.classifier.energies(logits * self.folded)


def write_graph(path: Path, exported: ExportedClassifier, max_length: int) -> None:
    """Write the ONNX file. The attention of the classifier is changed: pass one that is not used afterwards."""
    encoder = exported.classifier.encoder
    if exported.classifier.is_packed:
        encoder.base_model.set_attn_implementation("sdpa")
    config: Any = encoder_config(encoder)
    ids = torch.arange(5, 5 + 2 * min(7, max_length - 1)).reshape(2, -1) % config.vocab_size  # two example texts
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0  # of different length
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    size = sum(p.numel() * p.element_size() for p in exported.parameters())
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=max_length)
    with _quiet():
        torch.onnx.export(
            exported.cpu().eval(), (), path, kwargs=inputs, input_names=list(inputs),
            output_names=["logits", "energy"] if exported.energy else ["logits"], dynamo=True,
            dynamic_shapes={name: {0: batch, 1: length} for name in inputs}, external_data=size > MAX_EMBEDDED,
            verbose=False,
        )  # fmt: skip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what exporters print about optional packages."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class OnnxSession:
    """An ONNX file with its tokenizer, which truncates and pads; it needs onnxruntime and tokenizers alone."""

    def __init__(self, directory: Path, name: str = MODEL) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        threads = os.environ.get("OMP_NUM_THREADS", "")  # onnxruntime does not read it; 0 means all cores
        options.intra_op_num_threads = int(threads) if threads.isdigit() else 0
        self.session = onnxruntime.InferenceSession(directory / name, options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))

    def predict(self, texts: Sequence[Text], on_batch: Callable[[int], None] = lambda n: None) -> dict[str, np.ndarray]:
        """The outputs of the graph: logits [n, C] and, if exported, energy [n]."""
        order = sorted(range(len(texts)), key=lambda i: len("".join(texts[i])))
        parts: list[list[np.ndarray]] = []
        for start in range(0, len(texts), BATCH_SIZE):
            parts.append(self.session.run(None, self._inputs([texts[i] for i in order[start : start + BATCH_SIZE]])))
            on_batch(len(parts[-1][0]))
        names = [output.name for output in self.session.get_outputs()]
        back = np.argsort(order)
        return {name: np.concatenate(found)[back] for name, found in zip(names, zip(*parts, strict=True), strict=True)}

    def _inputs(self, texts: Sequence[Text]) -> dict[str, np.ndarray]:
        encoded, names = self.tokenizer.encode_batch(list(texts)), [i.name for i in self.session.get_inputs()]
        return {name: np.array([getattr(e, INPUTS[name]) for e in encoded], dtype=np.int64) for name in names}


def _verify(found: dict[str, np.ndarray], rows: Predictions) -> dict[str, float]:
    """The largest differences to PyTorch; an error if they exceed the tolerance."""
    differences = {"probabilities": np.abs(softmax(found["logits"]) - rows.probs).max(axis=1)}
    if "energy" in found:
        energies = rows.require_energies()
        differences["energy"] = np.abs(found["energy"] - energies) / np.maximum(1, np.abs(energies))
    for name, values in differences.items():
        worst = int(np.argmax(values))  # NaN counts as the largest
        if not values[worst] <= TOLERANCE:
            raise EbmcalError(
                f"The ONNX model differs from PyTorch: {name} by {values[worst]:.2g} (tolerance {TOLERANCE:g}) on "
                f"{(rows.texts or [''])[worst]!r:.80}. Nothing was written."
            )
    return {name: float(values.max()) for name, values in differences.items()}


def _quantize(directory: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(directory / MODEL)
    del graph.graph.value_info[:]  # shapes of weights, which the quantiser transposes and infers again
    with _quiet():
        quantize_dynamic(graph, directory / INT8, weight_type=QuantType.QInt8, per_channel=True)


def _cost(small: np.ndarray, plain: np.ndarray, rows: Predictions) -> dict[str, Any]:
    """What int8 changes: labels, probabilities and, on labelled rows, accuracy and calibration with intervals."""
    int8, float32 = softmax(small), softmax(plain)
    gap, known = np.abs(int8 - float32), rows.labels >= 0
    found: dict[str, Any] = {
        "same_label": float((int8.argmax(axis=1) == float32.argmax(axis=1)).mean()),
        "max_difference": float(gap.max()),
        "mean_difference": float(gap.mean()),
    }
    if not known.any():
        return found
    changes = {}
    for name in COST_METRICS:
        before, after = (metrics.METRICS[name].function(rows.labels[known], probs=p[known]) for p in (float32, int8))
        test = metrics.paired_test(name, rows.labels[known], int8[known], float32[known])
        values = {"float32": before, "int8": after, "difference": test.difference, "low": test.low, "high": test.high}
        changes[name] = {key: value if np.isfinite(value) else None for key, value in values.items()}
    return found | {"n_labelled": int(known.sum()), "metrics": changes}


def _cost_lines(int8: dict[str, Any]) -> Sequence[str]:
    first = (
        f"same label for {int8['same_label']:.1%} of the texts, probabilities differ by at most "
        f"{int8['max_difference']:.3f} (mean {int8['mean_difference']:.4f})."
    )
    if "metrics" not in int8:
        return [first, "accuracy and calibration unknown: the texts have no labels (--label-column)."]
    parts = []
    for name, entry in int8["metrics"].items():
        interval = "" if entry["low"] is None else " ({difference:+.3f} [{low:+.3f}, {high:+.3f}])".format(**entry)
        parts.append(f"{name} {entry['float32']:.3f} → {entry['int8']:.3f}{interval}")
    return [first, f"on {int8['n_labelled']:,} labelled rows: {', '.join(parts)}."]
