"""Command-line options made from `RunConfig`, so that YAML and options cannot diverge.

Common settings are options; every setting can be given with `--set key=value`. `--help-all` lists all of them.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
import yaml

from ebmcal.config import RunConfig, load_config
from ebmcal.errors import EbmcalError

_LISTS = ("methods", "seeds", "posthoc", "report_to")


def with_config(function: Callable[[RunConfig], None]) -> Callable[..., None]:
    """A typer command whose options are the settings of a run; `function(config)` gets the config."""

    def command(**options: Any) -> None:
        if options.pop("help_all"):
            _print_settings()
            return
        path, assignments = options.pop("config"), options.pop("assignments")
        function(load_config(path, _overrides(options) | _assigned(assignments)))

    extra = {
        "config": (Path | None, typer.Option("--config", help="YAML file with settings; options override it."), None),
        "assignments": (
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; see --help-all."),
            None,
        ),
        "help_all": (bool, typer.Option("--help-all", help="List all settings and exit."), False),
    }
    parameters = [
        _parameter(name, field)
        for name, field in RunConfig.model_fields.items()
        if field.json_schema_extra["common"]  # type: ignore[index]
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        for name, (kind, option, default) in extra.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    return command


def _parameter(name: str, field: Any) -> inspect.Parameter:
    default = field.get_default(call_default_factory=True)
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    help_ = field.description + (f" [{shown}]" if shown not in (None, False, {}, "", "auto") else "")
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_, show_default=False)
    kind = list[str] | None if name == "ood" else _option_type(name, field.annotation) | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _option_type(name: str, annotation: Any) -> Any:
    """The type of an option; lists are one word with commas, choices and ranges are checked by the config."""
    if name in _LISTS:
        return str
    inner = [t for t in get_args(annotation) if t is not type(None)] if get_origin(annotation) else [annotation]
    first = inner[0] if inner else annotation
    return first if first in (int, float, bool, Path) else str


def _overrides(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None and value != []}
    if "ood" in given:
        given["ood"] = dict(_split(text, "--ood", "NAME=FILE") for text in given["ood"])
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

    table = Table("setting", "default", "meaning", title="All settings (--set KEY=VALUE, or keys of the YAML file)")
    panel = ""
    for name, field in RunConfig.model_fields.items():
        extra: Any = field.json_schema_extra
        if extra["panel"] != panel:
            panel = extra["panel"]
            table.add_section()
        default = field.get_default(call_default_factory=True)
        table.add_row(name, "" if default in (None, {}, []) else str(default), field.description)
    Console().print(table)
