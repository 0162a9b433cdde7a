"""The command line. `--help` answers at once: only the command that was asked for is imported.

Each command is a function in a module of its own; `COMMANDS` says where. An `EbmcalError` is printed without a
traceback and the exit code is 1; wrong usage is 2; stopped by a signal is 130.
"""

import contextlib
import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from ebmcal.errors import EbmcalError, Interrupted, require_extra

TRAINING = ("torch", "transformers", "accelerate", "safetensors")
SERVING = (*TRAINING, "fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True)
class Command:
    """Where a command is, what it says in the overview, and what it needs to be installed."""

    home: str  # module:function
    help: str
    panel: str
    needs: tuple[str, ...] = ()
    resumes: bool = False  # whether the same command again goes on where it stopped
    extra: str = "train"  # that brings what it needs


START, STAGES, JUDGE, USE = (
    "From texts to a calibrated classifier",
    "The stages on their own",
    "Judge and mend any classifier",
    "Use a trained classifier",
)

COMMANDS: dict[str, Command] = {
    "run": Command("run:run", "All stages for one task: noise, training, calibration, report.", START, TRAINING, True),
    "demo": Command("demo:demo", "The whole method on built-in texts and weights, in minutes.", START, TRAINING, True),
    "benchmark": Command("benchmark:benchmark", "Tasks × methods × seeds, the paper's tables.", START, TRAINING, True),
    "tasks": Command("tasks:tasks", "What is built in: columns, labels, metric, settings.", START),
    "noise fit": Command("noise:fit", "Finetune the noise language model.", STAGES, TRAINING, True),
    "noise sample": Command("noise:sample", "Write noise texts into a store.", STAGES, TRAINING, True),
    "noise show": Command("noise:show", "Look at noise: masked input, hidden words, what was written.", STAGES),
    "train": Command("train:train", "Train the models of a run, without predictions, report.", STAGES, TRAINING, True),
    "predict": Command("predict:predict", "Run a model on a file of texts.", STAGES, TRAINING, True),
    "evaluate": Command("evaluate:evaluate", "Metrics with intervals for prediction files.", JUDGE),
    "calibrate": Command("calibrate:calibrate", "Fit a calibrator and keep it with the model.", JUDGE),
    "decide": Command("decide:decide", "A rule that answers or abstains, with a promise.", JUDGE),
    "report": Command("report:report", "The report of a run as HTML, Markdown, LaTeX or JSON.", JUDGE),
    "playground": Command(
        "playground:playground", "A page to try a model on, beside a baseline.", USE, SERVING, extra="serve"
    ),
    "serve": Command("serve:serve", "A model over HTTP, requests in packed batches.", USE, SERVING, extra="serve"),
    "stress": Command("stress:stress", "A model on changed texts: typos, cuts, negation …", JUDGE, TRAINING),
    "watch": Command("watch:watch", "A log of predictions: accuracy to expect, drift, unusual texts.", USE),
    "export": Command("export:export", "A model as ONNX, checked against PyTorch.", USE, TRAINING),
    "push": Command("push:push", "A model with its card to the Hugging Face hub.", USE),
}


class Commands(TyperGroup):
    """The commands; a flag with a value of the wrong type is refused with the value."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            # of pydantic, which some versions of typer check with
            came: list[Any] = getattr(error.__cause__, "errors", list)()
            error.message += f"; {came[0]['input']!r} came" if came else ""
            raise


def build_app(wanted: str | None = None) -> typer.Typer:
    """The app with the `wanted` command imported and the others as stubs that only have their help."""
    options: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": "markdown"}
    options["pretty_exceptions_enable"] = False
    text = "Text classifiers whose probabilities can be trusted."
    app = typer.Typer(name="ebmcal", cls=Commands, help=text, **options)
    groups: dict[str, typer.Typer] = {}
    for name, command in COMMANDS.items():
        group, _, leaf = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True)
            app.add_typer(groups[group], name=group, help=f"The stages of {group}.", rich_help_panel=command.panel)
        function = _load(command) if name == wanted else _stub(command)
        parent = groups[group] if group else app
        parent.command(leaf, help=command.help, rich_help_panel=None if group else command.panel)(function)
    app.callback()(_version)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `ebmcal` script."""
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as by Ctrl-C: with a word and what was finished
    try:
        try:
            build_app(_wanted(arguments))(arguments, standalone_mode=True)
        finally:
            sys.stdout.flush()  # here, where a reader that has gone is no trouble
    except BrokenPipeError:
        _end_quietly()
    except EbmcalError as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(130 if isinstance(error, Interrupted) else 1) from None
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # which typer turns into exit code 1
            _end_quietly()
        if getattr(stop, "code", 130) != 130:  # typer turns Ctrl-C into this exit code
            raise
        command = COMMANDS.get(_wanted(arguments) or "")
        kept = "What was finished is kept: run the same command again to go on."
        typer.secho(f"Stopped. {kept if command and command.resumes else 'Nothing was written.'}", err=True)
        raise SystemExit(130) from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        typer.secho(
            f"Error: {error.strerror or error}{where}. Mend it, then run the same command again.",
            fg=typer.colors.RED,
            err=True,
        )
        raise SystemExit(1) from None


def _end_quietly() -> NoReturn:
    """The reader, `head` for example, had enough: nothing more is written, and nothing is wrong."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python flushes at its end goes nowhere
    raise SystemExit(0)


def _wanted(arguments: list[str]) -> str | None:
    words = [a for a in arguments if not a.startswith("-")][:2]
    return next((name for name in (" ".join(words), words[0] if words else "") if name in COMMANDS), None)


def _load(command: Command) -> Callable[..., None]:
    """The function of a command; it says which extra is missing when it is called, not before: help needs none."""
    module, name = command.home.split(":")
    function = getattr(importlib.import_module(f"ebmcal.cli.{module}"), name)

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> None:
        require_extra(command.extra, *command.needs)
        function(*arguments, **options)

    return checked


def _stub(command: Command) -> Callable[[], None]:
    def stub() -> None:
        raise AssertionError("a stub is only there for the overview")

    return stub


def _print_version(wanted: bool) -> None:
    if wanted:
        from ebmcal import __version__

        typer.echo(f"ebmcal {__version__}")
        raise typer.Exit


def _version(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
    ),
) -> None:
    pass
