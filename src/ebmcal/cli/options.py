"""What commands share: declarations of options, checks of outputs, and the options of `ebmcal run`.

The options of a run are made from `RunConfig`, so that YAML and options cannot diverge: common settings are options,
every setting can be given with `--set key=value`, and `--help-all` lists them.
"""

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
import yaml

from ebmcal.errors import EbmcalError


def option(help_: str, default: Any = None, *names: str, **settings: Any) -> Any:
    """An option, named like the parameter unless stated."""
    return typer.Option(default, *names, help=help_, **settings)


def flag(help_: str, *names: str) -> Any:
    """An option without a value, off by default."""
    return typer.Option(False, *names, help=help_)


def argument(help_: str, default: Any = ..., **settings: Any) -> Any:
    """A positional argument, required unless it has a default."""
    return typer.Argument(default, help=help_, **settings)


MODEL = argument("Model directory, or a run directory: its recommended model.")
PREDICTIONS = option("Predictions for labelled rows the model was not trained on; calibration or test: its run's.")
DATA = option("Labelled texts instead of predictions; needs a model.")
TEXT_COLUMN = option("Text column. [default: the model's, or text]")
TEXT_PAIR_COLUMN = option("Second text column.")
LABEL_COLUMN = option("Label column of --data. [default: the model's, or label]")
NORMALIZE = flag("Divide rounded probabilities by the sums of their rows.", "--normalize")
JSON_FILE = option("Write all numbers as JSON.", None, "--json")
REPORT = option("Write an HTML page with plots.")
OVERWRITE = flag("Replace existing output files.", "--overwrite")
RAY_ADDRESS = option("Ray: HOST:PORT of a cluster, or auto.")
WORKERS = option("Ray: number of one-thread workers.", min=1)

_ASSIGNMENT = "Any other setting; see --help-all."

#: Settings that are mappings → the form of one entry; their options may be repeated.
MAPPINGS = {"ood": "NAME=FILE", "merge_labels": "LABEL=LABEL"}


def split_names(text: str | None) -> list[str] | None:
    """Names separated by commas; None if the option was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def check_outputs(
    outputs: dict[str, Path | None], inputs: Iterable[Path | str | None] = (), *, overwrite: bool
) -> None:
    """Raise before any work if an output (option → path) cannot be written, is an input, or exists already."""
    from ebmcal.storage import check_writable

    read = {Path(path).resolve() for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is not None:
            if path.resolve() in read:
                raise EbmcalError(f"{option} {path} is also an input. Choose another file.")
            if option == "--report" and path.suffix.lower() not in (".html", ".htm"):
                raise EbmcalError(f"--report {path}: expected an .html file.")
            check_writable(path, option, overwrite)


def write_results(found: Any, numbers: str, json_file: Path | None, report: Path | None) -> None:
    """The numbers of a result (JSON) and its report, where asked for."""
    from ebmcal.storage import write_text

    if json_file is not None:
        write_text(json_file, numbers + "\n")
        typer.echo(f"Numbers written to {json_file}.", err=True)
    if report is not None:
        typer.echo(f"Report written to {found.report(report)}.", err=True)


def with_config(function: Callable[..., None]) -> Callable[..., None]:
    """A typer command whose options are the settings of a run and those of `function(config, …)`."""
    from ebmcal.config import RunConfig, load_config

    own = list(inspect.signature(function).parameters.values())[1:]

    def command(**options: Any) -> None:
        if options.pop("help_all"):
            _print_settings()
            return
        path, assignments = options.pop("config"), options.pop("assignments")
        values = {parameter.name: options.pop(parameter.name) for parameter in own}
        function(load_config(path, _overrides(options) | _assigned(assignments)), **values)

    settings = RunConfig.model_fields.items()
    common = [_parameter(name, *_declare(name, field)) for name, field in settings if _extra(field)["common"]]
    last = [
        _parameter("config", Path | None, option("YAML file with settings; options override it.")),
        _parameter("assignments", list[str] | None, option(_ASSIGNMENT, None, "--set", metavar="KEY=VALUE")),
        _parameter("help_all", bool, flag("List all settings and exit.", "--help-all")),
    ]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([*common, *own, *last])  # type: ignore[attr-defined]  # read by typer
    return command


def _parameter(name: str, kind: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=declared, annotation=kind)


def _extra(field: Any) -> dict[str, Any]:
    found: dict[str, Any] = field.json_schema_extra
    return found


def _declare(name: str, field: Any) -> tuple[Any, Any]:
    """The type and declaration of an option; lists are one word with commas, the config checks choices and ranges."""
    default = field.get_default(call_default_factory=True)
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    help_ = field.description + (f" [{shown}]" if shown not in (None, False, {}, "", "auto") else "")
    if name in MAPPINGS:
        return list[str] | None, option(help_, metavar=MAPPINGS[name])
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    first = kinds[0] if kinds and get_origin(field.annotation) is not list else field.annotation
    kind = first if first in (int, float, bool, Path) else str
    return kind | None, option(help_, None, f"--{name.replace('_', '-')}", show_default=False)


def _overrides(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None and value != []}
    for name in MAPPINGS.keys() & given.keys():
        option = f"--{name.replace('_', '-')}"
        pairs = {_split(text, option, MAPPINGS[name]) for text in given[name]}
        given[name] = dict(pairs)
        if len(given[name]) < len(pairs):
            repeated = next(key for key in given[name] if sum(key == other for other, _ in pairs) > 1)
            raise EbmcalError(f"{option} is given twice for {repeated!r}, with different values. Keep one of them.")
    return given


def _assigned(assignments: list[str] | None) -> dict[str, Any]:
    pairs = (_split(text, "--set", "KEY=VALUE") for text in assignments or ())
    return {key.replace("-", "_"): yaml.safe_load(value) for key, value in pairs}


def _split(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise EbmcalError(f"{option} expects {form}, got {text!r}.")
    return key, value


def _print_settings() -> None:
    from rich.console import Console
    from rich.table import Table

    from ebmcal.config import RunConfig

    table = Table("setting", "default", "meaning", title="All settings (--set KEY=VALUE, or keys of the YAML file)")
    panel = ""
    for name, field in RunConfig.model_fields.items():
        if _extra(field)["panel"] != panel:
            panel = _extra(field)["panel"]
            table.add_section()
        default = field.get_default(call_default_factory=True)
        table.add_row(name, "" if default in (None, {}, []) else str(default), field.description)
    Console().print(table)
