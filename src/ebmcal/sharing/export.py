"""`export`: a model folder as an ONNX file that onnxruntime runs alone, checked against PyTorch before it is there.

What `ebmcal export` does. The temperature that is kept with the model is in the graph; int8 weights, on request, come
with what they cost: accuracy and calibration on the same rows, with intervals.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebmcal.calibrators import Calibrator, TemperatureScaling, attached
from ebmcal.data.given import check_given, given_rows
from ebmcal.errors import EbmcalError, require_extra
from ebmcal.judging import Measures, compare, judge
from ebmcal.metrics import accuracy
from ebmcal.model import Model, load
from ebmcal.predictions import Predictions
from ebmcal.predictions.arrays import softmax
from ebmcal.progress import Console, Reporter
from ebmcal.runfolder import predictions_of_model
from ebmcal.sharing.graph import quietly, write_graph
from ebmcal.sharing.session import INT8, MODEL, TOKENIZER, Row, Session
from ebmcal.storage.atomic import write_json, writing

#: How far probabilities and energies of the two may lie apart; energies in parts of their size where that is over 1.
TOLERANCE = 1e-4

#: Beside the ONNX files: what was checked, on how many texts, what int8 costs.
RECORD = "export.json"

LOSSES = ("accuracy", "ece_top_label", "ece_classwise", "nll")


@dataclass(frozen=True)
class Export:
    """What was written, and what the check found."""

    folder: Path
    document: dict[str, Any]

    def __str__(self) -> str:
        found, lines = self.document, []
        differences = ", ".join(f"{name} by {value:.1e}" for name, value in found["largest_difference"].items())
        texts = f"{found['n_texts']:,} texts of {found['texts']}"
        lines.append(f"{self.folder / MODEL}: {self._size(MODEL)}, checked on {texts}: differ at most in {differences}")
        lines[0] += f"; T = {found['temperature']:.4g} is in it." if found["temperature"] else "; not calibrated."
        if found.get("int8"):
            lines += [f"{self.folder / INT8}: {self._size(INT8)}; {line}" for line in _said(found["int8"])]
        return "\n".join(lines)

    def _size(self, name: str) -> str:
        return f"{(self.folder / name).stat().st_size / 1e6:.1f} MB"


def export(
    model: Model | str | Path,
    folder: str | Path,
    *,
    energy: bool = False,
    int8: bool = False,
    on: Any = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    max_rows: int = 500,
    overwrite: bool = False,
    progress: bool = False,
) -> Export:
    """Write a model as ONNX with its temperature in the graph, and with `energy` as a second output.

    It is compared with PyTorch on real texts, `on` (a file, texts, a table) or the test rows of the model's run, and
    the folder appears only if they agree. `int8` adds a file with smaller weights; its loss is measured on the same
    rows, where they have labels.

        ebmcal.export("runs/a/checkpoints/hidden-seed1/model", "out", energy=True)
    """
    require_extra("onnx", "onnx", "onnxruntime", "onnxscript")
    folder = _checked_place(Path(folder).expanduser(), overwrite)
    _check_before_loading(model, on, max_rows)
    model = model if isinstance(model, Model) else load(model, device="cpu")
    temperature = _temperature(model.calibrator, model.folder)
    texts, rows = _real_rows(model, on, (text_column, text_pair_column, label_column), max_rows)
    reporter = Console() if progress else Reporter()
    with writing(folder, is_folder=True) as aside:
        _write_files(aside, model, temperature, energy)
        given = _texts_of(rows)
        with reporter.stage("checked against PyTorch", rows.n_rows * (1 + int8)) as advance:
            plain = Session.open(aside).predict(given, advance)
            document = {
                "format": 1, "model": model.folder.name, "label_names": list(model.label_names),
                "temperature": temperature if temperature != 1 else model.folded_temperature,
                "max_length": model.max_length, "texts": texts, "n_texts": rows.n_rows,
                "largest_difference": _differences(plain, rows),
            }  # fmt: skip
            if int8:
                _quantize(aside)
                small = Session.open(aside, INT8).predict(given, advance)
                document["int8"] = _losses(small, plain, rows)
        write_json(aside / RECORD, document)
    return Export(folder, document)


def _checked_place(folder: Path, overwrite: bool) -> Path:
    if folder.is_file():
        raise EbmcalError(f"{folder} is a file; the ONNX file, its tokenizer and its labels go into a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / RECORD).is_file():
            raise EbmcalError(f"{folder} is there already and holds other things. Choose another folder.")
        if not overwrite:
            raise EbmcalError(f"{folder} holds an export already. --overwrite replaces it; or choose another folder.")
    return folder


def _check_before_loading(model: Model | str | Path, on: Any, max_rows: int) -> None:
    """Refuse what takes no weights to tell: a calibrator that no graph can hold, no texts to check on."""
    if max_rows < 1:
        raise EbmcalError(f"max_rows (--max-rows) is {max_rows}; at least one text is needed for the check.")
    check_given(on)
    if isinstance(model, Model) or not Path(model).is_dir():
        return
    _temperature(attached(Path(model)), Path(model))
    if on is None:
        _test_file(Path(model))


def _temperature(calibrator: Calibrator | None, folder: Path) -> float:
    if calibrator is None:
        return 1.0
    if type(calibrator) is not TemperatureScaling:  # one number for all texts
        raise EbmcalError(
            f"{folder} is calibrated by {calibrator.name}, and only a temperature can go into the graph. "
            "Calibrate with it first: ebmcal calibrate MODEL --on PREDICTIONS --calibrator temperature"
        )
    return float(calibrator.temperature_)


def _real_rows(
    model: Model, on: Any, columns: tuple[str | None, str | None, str | None], max_rows: int
) -> tuple[str, Predictions]:
    """Where the texts come from, and what PyTorch says about them."""
    if on is None:
        kept, name = Predictions.read(_test_file(model.folder), label_names=model.label_names), "the test split"
        texts, labels = _texts_of(kept), kept.labels
    else:
        rows = given_rows(on, model.columns_of(*columns), model.label_names)
        texts, labels, name = rows.texts, rows.labels, rows.name
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:max_rows])
    found = model.predict([texts[i][0] if texts[i][1] is None else texts[i] for i in chosen])
    return name, replace(found, labels=np.asarray(labels)[chosen])


def _texts_of(rows: Predictions) -> list[Row]:
    pairs: list[str | None] = [*rows.text_pairs] if rows.text_pairs else [None] * rows.n_rows
    return list(zip(rows.texts or [], pairs, strict=True))


def _test_file(model: Path) -> Path:
    path = predictions_of_model(model, "test")
    if path is None:
        raise EbmcalError(
            f"{model} is not in the folder of a run, so there are no texts to check the export on. Give some "
            "that are like those it will see: on (--on FILE, with --label-column for what int8 costs)."
        )
    return path


def _write_files(aside: Path, model: Model, temperature: float, energy: bool) -> None:
    from tokenizers import Tokenizer

    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EbmcalError(f"The tokenizer of {model.folder} has no fast form (tokenizer.json), which ONNX users need.")
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.enable_truncation(model.max_length)
    tokenizer.enable_padding(pad_id=model.classifier.config.pad_token_id or 0, pad_token=model.tokenizer.pad_token)
    tokenizer.save(str(aside / TOKENIZER))
    shutil.copy(model.folder / "config.json", aside / "config.json")
    fresh = load(model.folder, device="cpu").classifier  # its attention is changed, and the caller's must not be
    try:
        write_graph(
            aside / MODEL, fresh, temperature=temperature, folded=model.folded_temperature or 1.0, energy=energy,
            max_length=model.max_length,
        )  # fmt: skip
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        why = " ".join(str(error).split())[:300]
        raise EbmcalError(f"PyTorch cannot export a {type(fresh.encoder).__name__} to ONNX: {why}") from error


def _differences(found: dict[str, np.ndarray], rows: Predictions) -> dict[str, float]:
    """The largest differences, checked: what is written has to say what the model says."""
    differences = {"probabilities": np.abs(softmax(found["logits"]) - rows.probs).max(axis=1)}
    if "energy" in found:
        energies = rows.require_energies()
        differences["energy"] = np.abs(found["energy"] - energies) / np.maximum(1, np.abs(energies))
    for name, values in differences.items():
        if not values.max() <= TOLERANCE:  # NaN too
            worst = int(np.nanargmax(values)) if not np.isnan(values).all() else 0
            raise EbmcalError(
                f"The ONNX file does not say what the model says: {name} differ by {values[worst]:.2g} (allowed "
                f"{TOLERANCE:g}) on {(rows.texts or [''])[worst]!r:.80}. Nothing was written."
            )
    return {name: float(values.max()) for name, values in differences.items()}


def _quantize(aside: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(aside / MODEL)
    del graph.graph.value_info[:]  # shapes of weights that the quantizer turns round; it infers them anew
    with quietly():
        quantize_dynamic(graph, aside / INT8, weight_type=QuantType.QInt8, per_channel=True)


def _losses(small: dict[str, np.ndarray], plain: dict[str, np.ndarray], rows: Predictions) -> dict[str, Any]:
    """What int8 changes: labels, probabilities, and, on labelled rows, accuracy and calibration with intervals."""
    ours, theirs = (rows.with_probs(softmax(found["logits"])) for found in (small, plain))
    found: dict[str, Any] = {
        "same_label": accuracy(theirs.predicted(), probs=ours.probs),
        "largest_difference": float(np.abs(ours.probs - theirs.probs).max()),
        "mean_difference": float(np.abs(ours.probs - theirs.probs).mean()),
    }
    if not (rows.labels >= 0).any():
        return found
    how = Measures(LOSSES, LOSSES)
    figures = {name: judge(p, how, method=name)["metrics"] for name, p in (("float32", theirs), ("int8", ours))}
    tests = {test["metric"]: test for test in compare(ours, theirs, how)}
    return found | {"n_labelled": int((rows.labels >= 0).sum()), "metrics": figures, "change": tests}


def _said(int8: dict[str, Any]) -> list[str]:
    first = f"the same label for {int8['same_label']:.1%} of the texts, probabilities within "
    first += f"{int8['largest_difference']:.3f} (mean {int8['mean_difference']:.4f})."
    if "change" not in int8:
        return [first, "its accuracy and calibration are unknown: the texts have no labels (--label-column)."]
    parts = [
        f"{name} {int8['metrics']['float32'][name]['value']:.3f} → {int8['metrics']['int8'][name]['value']:.3f} "
        f"({test['difference']:+.3f} [{test['low']:+.3f}, {test['high']:+.3f}])"
        for name, test in int8["change"].items()
    ]
    return [first, f"on {int8['n_labelled']:,} labelled rows: {', '.join(parts)}."]
