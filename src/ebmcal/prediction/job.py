"""`predict_file`: a model or an ensemble on a file or standard input of any length, in constant memory.

Rows are read, predicted and written in chunks; the input alone determines where chunks end, so a resumed job writes the
same bytes as an uninterrupted one. The engine runs chunks in this process or on Ray.
"""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ebmcal import __version__
from ebmcal.data.values import Columns
from ebmcal.errors import EbmcalError, error_context, unknown_name
from ebmcal.prediction.chunk_predictor import ChunkPredictor, predict_texts
from ebmcal.prediction.chunks import Chunk, OutputChunk, StandardOutput, Target, open_output_file, split_chunks
from ebmcal.prediction.columns import OutputColumns, result_columns
from ebmcal.prediction.ensemble import Ensemble
from ebmcal.prediction.reading import STDIN, Input, check_input, count_rows, detect_format, open_input
from ebmcal.prediction.writing import Encoder, check_output, detect_output_format
from ebmcal.progress import Reporter, make_reporter
from ebmcal.storage import PathLike, fingerprint

if TYPE_CHECKING:
    from ebmcal.model import Model
    from ebmcal.selective import AbstentionRule

ENGINES = ("local", "ray")

#: Computes chunks; the results are in the order of the chunks.
Engine = Callable[[Iterator[Chunk]], Iterator[OutputChunk]]


@dataclass(frozen=True)
class Summary:
    """What a job did; `n_reused` rows were already there from an interrupted job."""

    n_rows: int
    n_errors: int
    n_abstained: int
    n_ood: int
    n_reused: int
    first_error: str | None
    meta: dict[str, Any]


def predict_file(
    model: "Model | Ensemble",
    source: PathLike,
    output: PathLike | None = None,
    *,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    calibrated: bool = True,
    rule: "AbstentionRule | Literal['model'] | None" = "model",
    strict: bool = False,
    overwrite: bool = False,
    escape_formulas: bool = False,
    input_format: str | None = None,
    encoding: str | None = None,
    output_format: str | None = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    ray_address: str | None = None,
    progress: bool | None = None,
) -> Summary:
    """Predict every row of a file (CSV, TSV, JSONL, JSON, Parquet, text lines; also .gz; "-" is standard input).

    The output (CSV, JSONL or Parquet; standard output if None) has the user's columns, then `predicted`, a probability
    per class, `confidence` and `energy`, and with an abstention rule (default: the model's) `decision`, `reason`,
    `ood`, `ood_p` and `label_set`. Rows that cannot be read keep their place, with the reason in `error`; `strict`
    stops at the first. Without column names, those that the model was trained on are read. An interrupted job continues
    when it is called again; `engine="ray"` distributes it over `workers` one-thread processes, with the same result.

        predict_file(ebmcal.load("model"), "new.csv", "predicted.csv")
    """
    source, target_path = str(source), None if output is None else Path(output).expanduser()
    formats = check_paths(source, target_path, overwrite, input_format, encoding, output_format, engine)
    read = _columns_to_read(model, formats[0], text_column, text_pair_column, label_column, id_column)
    given = open_input(source, formats[0], read.names(), encoding)
    with error_context(given.name):
        read = read.resolve([*given.columns, *(name for name in given.nested if name not in given.columns)])
    model, chosen = _with_rule(model, rule, calibrated)
    sample, uncertainty = predict_texts(model, ["a text" if read.pair is None else ("a", "b")], chosen, calibrated)
    results = list(result_columns(sample, uncertainty, chosen, calibrated))  # raises if the rule does not fit the model
    columns = OutputColumns.arrange(given, read, results, sample.label_names, formats[1])
    predict = ChunkPredictor(model, columns, chosen, calibrated)
    encoder = Encoder(
        formats[1], columns.names, escape_formulas, columns.arrow_types(given) if formats[1] == "parquet" else {},
        {"label_names": list(sample.label_names), "meta": sample.meta},
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        target: Target = StandardOutput(encoder)  if target_path is None else stack.enter_context(
            open_output_file(target_path, encoder, _settings(model, source, columns, chosen, calibrated), overwrite)
        )  # fmt: skip
        run = _make_engine(engine, predict, workers, ray_address, stack)
        # on standard output, a progress bar would mix with the rows
        reporter = make_reporter(False if target_path is None and progress is None else progress)
        counts, first_error = _run(given, target, run, strict, reporter, count_rows(source, formats[0]), str(read.text))
    return Summary(
        counts["rows"], counts["errors"], counts["abstained"], counts["ood"], counts["reused"], first_error, sample.meta
    )


def check_paths(
    source: str, output: Path | None, overwrite: bool = False, input_format: str | None = None,
    encoding: str | None = None, output_format: str | None = None, engine: str = "local",
) -> tuple[str, str]:  # fmt: skip
    """The formats of input and output; raises for whatever is wrong with them before a model is loaded."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    check_input(source, encoding)
    found = detect_format(source, input_format)
    if output is not None:
        check_output(output, source, overwrite)
    return found, detect_output_format(output, output_format, found)


def _columns_to_read(
    model: "Model | Ensemble", format: str, text: str | None, pair: str | None, label: str | None, id_: str | None
) -> Columns:
    """The columns that were named, else those that the model was trained on; lines of text have one."""
    first = model.members[0] if isinstance(model, Ensemble) else model
    if text is None and pair is None:
        text, pair = first.card.get("text_column"), first.card.get("text_pair_column")
    if format == "lines":
        if pair is not None:
            raise EbmcalError(
                "The model expects pairs of texts, and lines hold single texts. Pass CSV, JSONL or Parquet."
            )
        return Columns("text", None, label, id_)
    if first.is_pair is not None and first.is_pair != (pair is not None):
        expected = "pairs of texts; name both columns" if first.is_pair else "single texts; name one text column"
        raise EbmcalError(f"{first.folder} was trained on {expected}.")
    return Columns(text, pair, label, id_)


def _with_rule(
    model: "Model | Ensemble", rule: "AbstentionRule | str | None", calibrated: bool
) -> "tuple[Model | Ensemble, AbstentionRule | None]":
    """The model with the rule that is applied; rules hold only for the model that they were fitted for."""
    if isinstance(rule, str):
        rule = None if isinstance(model, Ensemble) or not calibrated else model.abstention_rule
    if rule is None:
        return model, None
    if isinstance(model, Ensemble):
        if rule.model is not None:
            raise EbmcalError(
                "The abstention rule was fitted for one model; its guarantee does not hold for an average. Fit a rule "
                "on predictions of the average: ebmcal abstain --predictions averaged.parquet --output rule.json"
            )
        return model, rule
    if rule.model not in (None, model.fingerprint):
        raise EbmcalError(
            f"The abstention rule was fitted for another model than {model.folder}. Fit one for this model."
        )
    return replace(model, fitted_rule=rule), rule


def _settings(
    model: "Model | Ensemble", source: str, columns: OutputColumns, rule: "AbstentionRule | None", calibrated: bool
) -> dict[str, Any]:
    """Everything that the output depends on, apart from the rows, which are compared chunk by chunk."""
    members = model.members if isinstance(model, Ensemble) else [model]
    calibrators = [None if m.calibrator is None else m.calibrator.to_json() for m in members]
    return {
        "version": __version__,
        "input": STDIN if source == STDIN else str(Path(source).resolve()),
        "models": [[m.fingerprint, m.max_length] for m in members],
        "mc_dropout": model.mc_dropout if isinstance(model, Ensemble) else 0,
        "calibrators": fingerprint(calibrators) if calibrated else None,
        "rule": None if rule is None else fingerprint(rule.to_json()),
        "read": [columns.read.text, columns.read.pair, columns.read.label, columns.read.id],
    }


def _make_engine(
    engine: str, predict: ChunkPredictor, workers: int | None, address: str | None, stack: contextlib.ExitStack
) -> Engine:
    if engine == "local":
        return lambda chunks: map(predict, chunks)
    from ebmcal.prediction.ray_engine import ray_engine

    return stack.enter_context(ray_engine(predict, workers, address))


def _run(
    given: Input, target: Target, engine: Engine, strict: bool, reporter: Reporter, total: int | None, text_column: str
) -> tuple[Counter[str], str | None]:
    """Reuse or compute every chunk, then finish the output."""
    counts: Counter[str] = Counter()
    first_errors: dict[int, str] = {}
    with reporter.stage(f"Predicting {given.name}", total) as advance:

        def check(error: str | None) -> None:
            if strict and error:
                raise EbmcalError(f"{given.name}, {error}. Fix the row, or run without --strict.")

        def count(number: int, found: dict[str, int], error: str | None) -> None:
            counts.update(found | {"chunks": 1})
            first_errors.update({number: error} if error else {})
            advance(found["rows"], note=f"{counts['errors']:,} errors" if counts["errors"] else "")

        def pending() -> Iterator[Chunk]:
            for chunk in split_chunks(given.rows, text_column):
                record = target.reuse(chunk)
                if record is None:
                    yield chunk
                else:
                    check(record["first_error"])
                    counts["reused"] += record["counts"]["rows"]
                    count(chunk.number, record["counts"], record["first_error"])

        for made in engine(pending()):
            check(made.first_error)
            target.write(made)
            count(made.number, made.counts, made.first_error)
    first_error = first_errors[min(first_errors)] if first_errors else None
    if message := given.warning():
        warnings.warn(message, stacklevel=3)
    if counts["errors"] == counts["rows"]:
        problem = f"no row could be used. The first error: {first_error}" if counts["rows"] else "there are no rows"
        raise EbmcalError(f"{given.name}: {problem}.")
    target.finish(counts["chunks"])
    return counts, first_error
