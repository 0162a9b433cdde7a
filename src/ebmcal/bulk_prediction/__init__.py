"""`predict_file`: a model or an ensemble on a file or standard input of any length, in constant memory.

Rows are read, predicted (`rows`) and written (`output`) in chunks; the input alone determines where chunks end, so a
resumed job writes the same bytes as an uninterrupted one. The engine computes chunks in this process or on Ray.
"""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ebmcal import __version__
from ebmcal.bulk_prediction.output import SUFFIXES, Encoder, StandardOutput, open_output
from ebmcal.bulk_prediction.rows import STDIN, Chunk, ChunkPredictor, Input, OutputChunk, OutputColumns, predict_texts
from ebmcal.data.files import Columns, check_encoding, check_file, format_of
from ebmcal.errors import EbmcalError, error_context, plural, unknown_name
from ebmcal.progress import make_reporter
from ebmcal.storage import PathLike, check_writable, fingerprint

if TYPE_CHECKING:
    from ebmcal.model import Ensemble, Model
    from ebmcal.selective import AbstentionRule

__all__ = ["Summary", "check_paths", "predict_file"]

ENGINES = ("local", "ray")
INPUT_FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "lines")

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
    `is_ood`, `ood_p_value` and `label_set`. Rows that cannot be read keep their place, with the reason in `error`;
    `strict` stops at the first. Without column names, those that the model was trained on are read, also that of the
    ids if there is one. An interrupted job continues when it is called again; `engine="ray"` distributes it over
    `workers` one-thread processes, with the same result.

        predict_file(ebmcal.load("model"), "new.csv", "predicted.csv")
    """
    source, target_path = str(source), None if output is None else Path(output).expanduser()
    formats = check_paths(source, target_path, overwrite, input_format, encoding, output_format, engine)
    wanted = _columns_to_read(model, formats[0], Columns(text_column, text_pair_column, label_column, id_column))
    given = Input.open(source, formats[0], wanted, encoding)
    if wanted.id is None and (own := _members(model)[0].card.get("id_column")) in given.columns:
        wanted = replace(wanted, id=own)
    with error_context(given.name):
        read = wanted.resolve(given.columns)
    model, chosen = _with_rule(model, rule, calibrated)
    # one text shows which columns there will be, and raises if the rule does not fit the model
    sample, results = predict_texts(model, ["a text" if read.pair is None else ("a", "b")], chosen, calibrated)
    columns = OutputColumns.arrange(given, read, list(results), sample.label_names, formats[1])
    types = columns.arrow_types(given) if formats[1] == "parquet" else {}
    about = {"label_names": list(sample.label_names), "meta": sample.meta}
    encoder = Encoder(formats[1], columns.names, escape_formulas, types, about)
    job = fingerprint(_settings(model, chosen, calibrated), vars(read), encoder.columns, escape_formulas)
    # on standard output, a progress bar would mix with the rows
    reporter = make_reporter(False if target_path is None and progress is None else progress)
    with (
        open_output(target_path, encoder, job, overwrite) as target,
        _open_engine(engine, ChunkPredictor(model, chosen, calibrated, columns), workers, ray_address) as run,
        reporter.stage(f"Predicting {given.name}", _count_rows(source, formats[0])) as advance,
    ):
        counts, first_error = _run(given, str(read.text), target, run, strict, advance)
    if message := given.warning():
        warnings.warn(message, stacklevel=2)
    return Summary(
        counts["rows"], counts["errors"], counts["abstained"], counts["ood"], counts["reused"], first_error, sample.meta
    )


def check_paths(
    source: str, output: Path | None, overwrite: bool, input_format: str | None, encoding: str | None,
    output_format: str | None, engine: str,
) -> tuple[str, str]:  # fmt: skip
    """The formats of input and output; raises for whatever is wrong with them before a model is loaded."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    check_encoding(encoding)
    if input_format not in (None, *INPUT_FORMATS):
        raise unknown_name("input format", str(input_format), INPUT_FORMATS)
    if source == STDIN and input_format == "parquet":
        raise EbmcalError("parquet cannot be read from standard input. Pass a file, or use jsonl.")
    if source != STDIN:
        check_file(Path(source))
    found = input_format or ("lines" if source == STDIN else format_of(Path(source)))
    found = "lines" if found == "txt" else found
    if output is None:
        if output_format not in (None, "csv", "jsonl"):
            raise unknown_name("format of standard output", str(output_format), ("csv", "jsonl"))
        return found, output_format or ("csv" if found in ("csv", "tsv") else "jsonl")
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise EbmcalError(f"{output} is the input. Choose another output.")
    check_writable(output, "--output", overwrite)
    if output.suffix.lower() not in SUFFIXES:
        raise EbmcalError(f"{output}: {unknown_name('suffix', output.suffix, SUFFIXES)}")
    if output_format not in (None, wanted := SUFFIXES[output.suffix.lower()]):
        raise EbmcalError(
            f"The suffix of {output.name} means {wanted}, but the format is {output_format}. Drop one of them."
        )
    return found, wanted


def _count_rows(source: str, format: str) -> int | None:
    """About how many rows a file has, for the progress bar; None if that is not cheap to find out."""
    if source == STDIN or source.lower().endswith(".gz") or format == "json":
        return None
    if format == "parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(source).num_rows)
    with open(source, "rb") as file:
        n_lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return max(n_lines - (format in ("csv", "tsv")), 1)


def _members(model: "Model | Ensemble") -> "list[Model]":
    return list(getattr(model, "members", [model]))


def _columns_to_read(model: "Model | Ensemble", format: str, named: Columns) -> Columns:
    """The columns that were named, else those that the model was trained on; lines of text have one."""
    first = _members(model)[0]
    if not named.texts():
        named = replace(named, text=first.card.get("text_column"), pair=first.card.get("text_pair_column"))
    if first.is_pair is not None and first.is_pair != (named.pair is not None):
        expected = "pairs of texts; name both columns" if first.is_pair else "single texts; name one text column"
        raise EbmcalError(f"{first.folder} was trained on {expected}.")
    if format == "lines" and named.pair is not None:
        raise EbmcalError("The model expects pairs of texts, and lines hold single texts. Pass CSV, JSONL or Parquet.")
    return replace(named, text="text") if format == "lines" else named


def _with_rule(
    model: "Model | Ensemble", rule: "AbstentionRule | str | None", calibrated: bool
) -> "tuple[Model | Ensemble, AbstentionRule | None]":
    """The model with the rule that is applied; rules hold only for the model that they were fitted for."""
    from ebmcal.model import Ensemble

    if isinstance(model, Ensemble):
        if rule is not None and not isinstance(rule, str) and rule.model is not None:
            raise EbmcalError(
                "The abstention rule was fitted for one model; its guarantee does not hold for an average. Fit a rule "
                "on predictions of the average: ebmcal abstain --predictions averaged.parquet --output rule.json"
            )
        return model, None if isinstance(rule, str) else rule
    if isinstance(rule, str):
        rule = model.abstention_rule if calibrated else None
    if rule is None:
        return model, None
    if rule.model not in (None, model.fingerprint):
        raise EbmcalError(
            f"The abstention rule was fitted for another model than {model.folder}. Fit one for this model."
        )
    return replace(model, fitted_rule=rule), rule


def _settings(model: "Model | Ensemble", rule: "AbstentionRule | None", calibrated: bool) -> list[Any]:
    """What the output depends on, apart from columns and rows."""
    members = _members(model)
    calibrators = [None if m.calibrator is None else m.calibrator.to_json() for m in members] if calibrated else None
    weights = [[m.fingerprint, m.max_length, m.predictor.bf16] for m in members]
    mc_dropout = getattr(model, "mc_dropout", None)
    return [__version__, weights, mc_dropout, calibrators, None if rule is None else rule.to_json(), calibrated]


def _run(
    given: Input, text_column: str, target: StandardOutput, engine: Engine, strict: bool, advance: Callable[..., None]
) -> tuple[Counter[str], str | None]:
    """Reuse or compute every chunk, then finish the output."""
    counts: Counter[str] = Counter()
    first_errors: dict[int, str] = {}

    def count(number: int, found: dict[str, int], error: str | None) -> None:
        if strict and error:
            raise EbmcalError(f"{given.name}, {error}. Fix the row, or run without --strict.")
        counts.update(found | {"chunks": 1})
        first_errors.update({number: error} if error else {})
        advance(found["rows"], note=plural(counts["errors"], "error") if counts["errors"] else "")

    def pending() -> Iterator[Chunk]:
        for chunk in given.chunks(text_column):
            record = target.reuse(chunk)
            if record is None:
                yield chunk
            else:
                count(chunk.number, record["counts"], record["first_error"])
                counts["reused"] += record["counts"]["rows"]

    for made in engine(pending()):
        count(made.number, made.counts, made.first_error)
        target.write(made)
    first_error = first_errors[min(first_errors)] if first_errors else None
    if counts["errors"] == counts["rows"]:
        problem = f"no row could be used. The first error: {first_error}" if counts["rows"] else "there are no rows"
        raise EbmcalError(f"{given.name}: {problem}.")
    target.finish(counts["chunks"])
    return counts, first_error


@contextlib.contextmanager
def _open_engine(name: str, predict: ChunkPredictor, workers: int | None, address: str | None) -> Iterator[Engine]:
    """Chunks in this process, or on the Ray cluster at `address` (None: one that is started for this job)."""
    if name == "local":
        yield lambda chunks: map(predict, chunks)
        return
    from ebmcal.cluster import map_on_cluster, ray_cluster

    with ray_cluster(address, workers) as n_workers:
        yield lambda chunks: map_on_cluster(predict, chunks, n_workers, in_order=True)
