"""Flags made from `RunConfig`: every setting is a flag, with its help, so that YAML and flags cannot drift apart.

`with_config` turns a function of a config and a reporter into a command that takes `--config FILE` and every setting.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from ebmcal.config import RunConfig, load_config
from ebmcal.errors import EbmcalError

LISTS = ("methods", "seeds", "posthoc", "report_to")


def with_config(function: Callable[..., None], extra: list[inspect.Parameter] | None = None) -> Callable[..., None]:
    """A typer command whose flags are the settings of a run; `function(config, **extra)` gets the config."""
    extra = extra or []

    def command(**flags: Any) -> None:
        own = {p.name: flags.pop(p.name) for p in extra}
        path = flags.pop("config")
        function(load_config(path, _overrides(flags)), **own)

    file = Annotated[Path | None, typer.Option("--config", help="A YAML file of settings; flags override it.")]
    parameters = [inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=file)]
    parameters += [_parameter(name, field) for name, field in RunConfig.model_fields.items()]
    shown = inspect.Signature([*parameters, *extra])
    command.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
    command.__name__ = function.__name__
    return command


def _parameter(name: str, field: Any) -> inspect.Parameter:
    kind, default = _flag_type(name, field.annotation), field.get_default(call_default_factory=True)
    shown = ",".join(map(str, default)) if isinstance(default, list) else default
    help_ = field.description + (f" [default: {shown}]" if shown not in (None, False, {}, "") else "")
    flag = f"--{name.replace('_', '-')}"
    names = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
    option = typer.Option(*names, help=help_, rich_help_panel=field.json_schema_extra["panel"], show_default=False)
    form = list[str] | None if name == "ood" else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[form, option])


def _flag_type(name: str, annotation: Any) -> type:
    """The type of a flag; lists are given as one word with commas, choices and numbers are checked by the config."""
    if name in LISTS:
        return str
    inner = [t for t in get_args(annotation) if t is not type(None)] if get_origin(annotation) else [annotation]
    first = inner[0] if inner else annotation
    return first if first in (int, float, bool, Path) else str


def _overrides(flags: dict[str, Any]) -> dict[str, Any]:
    given = {k: v for k, v in flags.items() if v is not None and v != []}
    for name in LISTS:
        if name in given:
            given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
    if "ood" in given:
        given["ood"] = dict(_named_file(text) for text in given["ood"])
    return given


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not name.isidentifier():
        raise EbmcalError(f"--ood takes NAME=FILE, for example books=books.csv; {text!r} came.")
    return name, path
