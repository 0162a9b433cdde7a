"""The command line. Only the requested command is imported, so `--help` is fast.

Each command is a function in its own module, listed in `COMMANDS`. An `EbmcalError` is printed without a traceback and
exits with 1; wrong usage exits with 2; a signal with 130.
"""

import contextlib
import functools
import importlib
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from ebmcal.errors import EbmcalError, Interrupted, require_extra

TRAINING = ("torch", "transformers", "accelerate", "datasets", "safetensors")
SERVING = (*TRAINING, "fastapi", "uvicorn", "httptools", "prometheus_client")


@dataclass(frozen=True)
class Command:
    """Where a command is, its one-line help, and what it needs to be installed."""

    location: str  # module:function below ebmcal.cli
    help: str
    panel: str
    needs: tuple[str, ...] = ()
    extra: str = "train"
    resumes: bool = False  # whether the same command continues after an interruption


TRAIN, EVALUATE, USE = "Train", "Evaluate and calibrate any classifier", "Use a trained model"

COMMANDS: dict[str, Command] = {
    "run": Command("run:run", "Train, calibrate and evaluate models on your data.", TRAIN, TRAINING, resumes=True),
    "demo": Command("run:demo", "The whole method on built-in data, in minutes.", TRAIN, TRAINING, resumes=True),
    "benchmark": Command(
        "run:benchmark", "Tasks × methods × seeds, with the paper's tables.", TRAIN, TRAINING, resumes=True
    ),
    "tasks": Command("run:tasks", "List the built-in tasks.", TRAIN),
    "noise generate": Command("run:generate", "Generate noise texts.", TRAIN, TRAINING, resumes=True),
    "noise show": Command("run:show", "Show examples of noise texts.", TRAIN, TRAINING),
    "evaluate": Command("evaluate:evaluate", "Metrics with intervals for prediction files.", EVALUATE),
    "calibrate": Command("calibrate:calibrate", "Fit a calibrator and store it with the model.", EVALUATE),
    "abstain": Command("calibrate:abstain", "Fit an abstention rule with a guarantee.", EVALUATE),
    "report": Command("evaluate:report", "Write the report of a run as HTML, Markdown, LaTeX or JSON.", EVALUATE),
    "predict": Command("use:predict", "Predict a file of texts.", USE, TRAINING, resumes=True),
    "serve": Command("use:serve", "Serve a model over HTTP, optionally with a web UI.", USE, SERVING, "serve"),
    "monitor": Command("evaluate:monitor", "Monitor logged predictions: accuracy estimate, drift, OOD.", USE),
    "robustness": Command("evaluate:robustness", "Test a model on perturbed texts.", USE, TRAINING),
    "export": Command("use:export", "Export a model to ONNX, verified against PyTorch.", USE, TRAINING),
    "push": Command("use:push", "Upload a model with its card to the Hugging Face hub.", USE),
}


class Overview(TyperGroup):
    """Lists the commands by panel. Help is plain text: drawing it with rich would take three times as long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel in (TRAIN, EVALUATE, USE):
            names = dict.fromkeys(name.split()[0] for name, command in COMMANDS.items() if command.panel == panel)
            with formatter.section(panel):
                formatter.write_dl([(name, self.commands[name].help) for name in names])


class HelpfulCommand(TyperCommand):
    """Usage errors of commands with training data suggest --train for a file without an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_train = any(parameter.name == "train" for parameter in self.params)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # a UsageError of click, which typer may bring along
            message = getattr(error, "message", "")
            if has_train and (found := re.search(r"unexpected extra argument\S* \((.*)\)", message)):
                error.message = f"{message}. Did you mean --train {found[1]}?"  # type: ignore[attr-defined]
            raise


def build_app(requested: str | None = None) -> typer.Typer:
    """The app with the requested command imported and the others as stubs for the overview."""
    app = typer.Typer(
        name="ebmcal",
        help="Text classifiers whose probabilities can be trusted. `ebmcal COMMAND --help` describes a command.",
        cls=Overview,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": 100},
    )
    groups: dict[str, typer.Typer] = {}
    for name, command in COMMANDS.items():
        group, _, leaf = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
            app.add_typer(groups[group], name=group, help="Noise texts for training.")
        parent = groups[group] if group else app
        if name == requested:
            parent.command(leaf, cls=HelpfulCommand)(_load(command))  # its docstring is the help
        else:
            parent.command(leaf, help=command.help)(_stub)
    app.callback()(_version)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `ebmcal` script."""
    arguments = sys.argv[1:] if arguments is None else arguments
    requested = _requested(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
    try:
        try:
            build_app(requested)(arguments, standalone_mode=True)
        finally:
            sys.stdout.flush()  # a closed pipe is handled here
    except BrokenPipeError:
        _exit_quietly()
    except EbmcalError as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(130 if isinstance(error, Interrupted) else 1) from None
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer turns it into exit code 1
            _exit_quietly()
        if getattr(stop, "code", 130) != 130:  # typer's exit code for Ctrl-C
            raise
        command = COMMANDS.get(requested or "")
        note = "Run the same command again to continue." if command and command.resumes else "Nothing was written."
        typer.secho(f"Interrupted. {note}", err=True)
        raise SystemExit(130) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        typer.secho(f"Error: {error.strerror or error}{where}.", fg=typer.colors.RED, err=True)
        raise SystemExit(1) from None


def _requested(arguments: list[str]) -> str | None:
    words = [argument for argument in arguments if not argument.startswith("-")][:2]
    return next((name for name in (" ".join(words), *words[:1]) if name in COMMANDS), None)


def _exit_quietly() -> NoReturn:
    """The reader of a pipe, such as `head`, has closed it."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes at exit
    raise SystemExit(0)


def _load(command: Command) -> Callable[..., None]:
    """The function of a command; a missing extra is reported when it is called, so that help works without it."""
    module, name = command.location.split(":")
    function = getattr(importlib.import_module(f"ebmcal.cli.{module}"), name)

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> None:
        require_extra(command.extra, *command.needs)
        with _plain_warnings():
            function(*arguments, **options)

    return checked


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each `UserWarning` once, as a line without its place in the code; others are not for users."""
    shown = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning) and str(message) not in shown:
            shown.add(str(message))
            typer.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield


def _stub() -> None:
    raise AssertionError("stubs exist only for the overview")


def _print_version(wanted: bool) -> None:
    if wanted:
        from ebmcal import __version__

        typer.echo(f"ebmcal {__version__}")
        raise typer.Exit


def _version(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    pass
