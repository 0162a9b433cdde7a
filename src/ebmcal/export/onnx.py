"""`export_onnx`: a model as an ONNX file for onnxruntime, verified against PyTorch before the directory appears.

The temperature of the model's calibrator is part of the graph. The optional int8 file comes with its cost: accuracy
and calibration on the same rows, with intervals.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebmcal import metrics
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.export.session import INT8, MODEL, TOKENIZER, OnnxSession, Text
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import softmax
from ebmcal.progress import make_reporter
from ebmcal.run_dir import predictions_of_model
from ebmcal.storage import PathLike, atomic_write, write_json

if TYPE_CHECKING:
    from ebmcal.model import Model

#: Largest allowed difference of probabilities, and of energies (relative above 1).
TOLERANCE = 1e-4

#: In the directory of an export: what was verified, on how many texts, and the cost of int8.
RECORD = "export.json"

COST_METRICS = ("accuracy", "ece_top_label", "ece_classwise", "nll")


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
        return "\n".join(lines)

    def _size(self, name: str) -> str:
        return f"{(self.directory / name).stat().st_size / 1e6:.1f} MB"


def export_onnx(
    model: "Model | PathLike",
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

        ebmcal.export_onnx("runs/a/trials/hidden-seed1/model", "exported", energy=True)
    """
    require_extra("onnx", "onnx", "onnxruntime", "onnxscript")
    directory = check_directory(Path(directory).expanduser(), overwrite)
    _check_before_loading(model, data, max_rows)
    loaded = _load(model)
    temperature = _temperature(loaded)
    source, rows = _real_rows(loaded, data, (text_column, text_pair_column, label_column), max_rows)
    texts = _texts_of(rows)
    with atomic_write(directory, directory=True) as temporary:
        _write_files(temporary, loaded, temperature, energy)
        with make_reporter(progress).stage("Verifying against PyTorch", rows.n_rows * (1 + int8)) as advance:
            plain = OnnxSession.open(temporary).predict(texts, advance)
            record: dict[str, Any] = {
                "model": loaded.folder.name, "label_names": list(loaded.label_names),
                "temperature": temperature if temperature != 1 else loaded.folded_temperature,
                "max_length": loaded.max_length, "texts": source, "n_texts": rows.n_rows,
                "max_difference": _verify(plain, rows),
            }  # fmt: skip
            if int8:
                _quantize(temporary)
                small = OnnxSession.open(temporary, INT8).predict(texts, advance)
                record["int8"] = _cost(small, plain, rows)
        write_json(temporary / RECORD, record)
    return Export(directory, record)


def check_directory(directory: Path, overwrite: bool) -> Path:
    """Raise if an export must not be written to this place."""
    if directory.suffix.lower() == ".onnx" or directory.is_file():
        raise EbmcalError(
            f"{directory}: expected a directory, not a file: {MODEL}, {TOKENIZER} and config.json are written into it. "
            f"For example: {directory.with_suffix('')}"
        )
    if directory.is_dir() and any(directory.iterdir()):
        if not (directory / RECORD).is_file():
            raise EbmcalError(f"{directory} exists and is not an export. Choose another directory.")
        if not overwrite:
            raise EbmcalError(f"{directory} holds an export already. Pass --overwrite, or choose another directory.")
    return directory


def _check_before_loading(model: "Model | PathLike", data: Any, max_rows: int) -> None:
    if max_rows < 1:
        raise EbmcalError(f"max_rows (--max-rows): expected at least 1 text for the verification, got {max_rows}.")
    if isinstance(data, str | Path):
        from ebmcal.data.tables import check_file

        check_file(Path(data))
    if data is None and isinstance(model, str | Path) and Path(model).is_dir():
        _test_file(Path(model))


def _load(model: "Model | PathLike") -> "Model":
    from ebmcal.model import Model, load

    return model if isinstance(model, Model) else load(model, device="cpu")


def _temperature(model: "Model") -> float:
    if model.calibrator is None:
        return 1.0
    temperature = getattr(model.calibrator, "temperature_", None)
    if temperature is None:
        raise EbmcalError(
            f"{model.folder} is calibrated by {model.calibrator.name}, but only a temperature can be part of the "
            "graph. Calibrate with it first: ebmcal calibrate MODEL --predictions FILE --calibrator temperature"
        )
    return float(temperature)


def _real_rows(
    model: "Model", data: Any, columns: tuple[str | None, str | None, str | None], max_rows: int
) -> tuple[str, Predictions]:
    """A name of the texts, and what PyTorch predicts for a sample of them."""
    if data is None:
        kept, name = Predictions.read(_test_file(model.folder), label_names=model.label_names), "the test split"
        texts, labels = _texts_of(kept), kept.labels
    else:
        texts, labels = _dataset_rows(model, data, columns)
        name = Path(data).name if isinstance(data, str | Path) else "the data"
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:max_rows])
    found = model.predict([texts[i] for i in chosen], progress=False)
    return name, found.replace(labels=labels[chosen])


def _dataset_rows(
    model: "Model", data: Any, columns: tuple[str | None, str | None, str | None]
) -> tuple[list[Text], np.ndarray]:
    from ebmcal.data import as_dataset

    text, pair, label = columns
    if text is None and pair is None:
        text, pair = model.card.get("text_column"), model.card.get("text_pair_column")
    rows = as_dataset(data, text_column=text, text_pair_column=pair, label_column=label, label_names=model.label_names)
    is_pair = "text_pair" in rows.column_names
    texts: list[Text] = list(zip(rows["text"], rows["text_pair"], strict=True)) if is_pair else list(rows["text"])
    return texts, np.asarray(rows["label"]) if "label" in rows.column_names else np.full(len(texts), -1)


def _texts_of(rows: Predictions) -> list[Text]:
    texts = rows.texts or []
    return list(zip(texts, rows.text_pairs, strict=True)) if rows.text_pairs else list(texts)


def _test_file(model: Path) -> Path:
    path = predictions_of_model(model, "test")
    if path is None:
        raise EbmcalError(
            f"{model} is not part of a run, so there are no texts to verify the export on. Pass texts like those it "
            "will see: data (--data FILE, with --label-column to measure the cost of int8)."
        )
    return path


def _write_files(directory: Path, model: "Model", temperature: float, energy: bool) -> None:
    import torch
    from tokenizers import Tokenizer

    from ebmcal.export.graph import write_graph
    from ebmcal.modeling.classifier import EnergyClassifier

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
    try:
        write_graph(
            directory / MODEL, classifier, temperature=temperature, folded=model.folded_temperature or 1.0,
            energy=energy, max_length=model.max_length,
        )  # fmt: skip
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        reason = " ".join(str(error).split())[:300]
        kind = type(classifier.encoder).__name__
        raise EbmcalError(f"PyTorch cannot export a {kind} to ONNX: {reason}") from error


def _verify(found: dict[str, np.ndarray], rows: Predictions) -> dict[str, float]:
    """The largest differences to PyTorch; an error if they exceed the tolerance."""
    differences = {"probabilities": np.abs(softmax(found["logits"]) - rows.probs).max(axis=1)}
    if "energy" in found:
        energies = rows.require_energies()
        differences["energy"] = np.abs(found["energy"] - energies) / np.maximum(1, np.abs(energies))
    for name, values in differences.items():
        if not values.max() <= TOLERANCE:  # also for NaN
            worst = int(np.nanargmax(values)) if not np.isnan(values).all() else 0
            raise EbmcalError(
                f"The ONNX model differs from PyTorch: {name} by {values[worst]:.2g} (tolerance {TOLERANCE:g}) on "
                f"{(rows.texts or [''])[worst]!r:.80}. Nothing was written."
            )
    return {name: float(values.max()) for name, values in differences.items()}


def _quantize(directory: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from ebmcal.export.graph import quiet

    graph = onnx.load(directory / MODEL)
    del graph.graph.value_info[:]  # shapes of weights, which the quantiser transposes and infers again
    with quiet():
        quantize_dynamic(graph, directory / INT8, weight_type=QuantType.QInt8, per_channel=True)


def _cost(small: dict[str, np.ndarray], plain: dict[str, np.ndarray], rows: Predictions) -> dict[str, Any]:
    """What int8 changes: labels, probabilities and, on labelled rows, accuracy and calibration with intervals."""
    int8, float32 = softmax(small["logits"]), softmax(plain["logits"])
    gap = np.abs(int8 - float32)
    found: dict[str, Any] = {
        "same_label": float((int8.argmax(axis=1) == float32.argmax(axis=1)).mean()),
        "max_difference": float(gap.max()),
        "mean_difference": float(gap.mean()),
    }
    known = rows.labels >= 0
    if not known.any():
        return found
    labels, changes = rows.labels[known], {}
    for name in COST_METRICS:
        before, after = (metrics.METRICS[name].function(labels, probs=p[known]) for p in (float32, int8))
        test = metrics.paired_test(name, labels, int8[known], float32[known], warn=False)
        changes[name] = {"float32": before, "int8": after, "difference": test.difference, "low": test.low,
                         "high": test.high}  # fmt: skip
    return found | {"n_labelled": int(known.sum()), "metrics": _finite(changes)}


def _finite(values: dict[str, dict[str, float]]) -> dict[str, dict[str, float | None]]:
    return {name: {k: v if np.isfinite(v) else None for k, v in entry.items()} for name, entry in values.items()}


def _cost_lines(int8: dict[str, Any]) -> Sequence[str]:
    first = (
        f"same label for {int8['same_label']:.1%} of the texts, probabilities differ by at most "
        f"{int8['max_difference']:.3f} (mean {int8['mean_difference']:.4f})."
    )
    if "metrics" not in int8:
        return [first, "accuracy and calibration unknown: the texts have no labels (--label-column)."]
    parts = [
        f"{name} {entry['float32']:.3f} → {entry['int8']:.3f}"
        + (
            f" ({entry['difference']:+.3f} [{entry['low']:+.3f}, {entry['high']:+.3f}])"
            if entry["low"] is not None
            else ""
        )
        for name, entry in int8["metrics"].items()
    ]
    return [first, f"on {int8['n_labelled']:,} labelled rows: {', '.join(parts)}."]
