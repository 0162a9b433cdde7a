"""The reference pages, made from the code each time the site is built: they cannot go stale.

`PAGES` has a function for each page; it returns Markdown.
"""

import importlib
import inspect
from types import ModuleType

import typer

import ebmcal
from ebmcal.cli import COMMANDS, build_app
from ebmcal.config import AUTO_METHODS, RunConfig

#: The sections of the API page: title, module, what it is for.
MODULES = {
    "Metrics": ("ebmcal.metrics", "Every metric takes `labels` [n] and `probs` or `logits` [n, C]; none needs torch."),
    "Calibrators": ("ebmcal.calibrators", "Fitted on held-out logits [n, C] and labels [n]; they give probabilities."),
    "Decisions": ("ebmcal.decisions", "Rules with a promise, fitted on held-out predictions; no torch."),
    "Plots": ("ebmcal.plots", "`prepare_…` computes plain data, `draw_…` draws it on axes and returns them."),
    "Reports": ("ebmcal.report", "One HTML file that loads nothing."),
}


def table(titles, rows):
    """A Markdown table; bars inside cells do not end them."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in r) + " |" for r in lines)


def first_line(thing):
    """The first sentence of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def commands():
    """Every command with its arguments and options."""
    parts = ["# Commands", "Made from the code. `ebmcal COMMAND --help` says the same.", ""]
    panels = {command.panel: None for command in COMMANDS.values()}
    for panel in panels:
        parts.append(f"## {panel}")
        parts += [_command(name) for name, command in COMMANDS.items() if command.panel == panel]
    parts += ["## Exit codes", table(["code", "meaning"], EXITS)]
    return "\n\n".join(parts) + "\n"


EXITS = [
    (0, "done"),
    (1, "an error: what came, what is allowed, what to do, without a traceback"),
    (2, "wrong usage: an option that does not exist, a value of the wrong type"),
    (130, "stopped by Ctrl-C or SIGTERM; what was finished is kept, the same command goes on"),
]


def _command(name):
    entry = COMMANDS[name]
    command = typer.main.get_command(build_app(name))
    for word in name.split():
        command = command.commands[word]
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    settings = [p for p in shown if p.name in RunConfig.model_fields and p.rich_help_panel]
    takes_all = len(settings) == len(RunConfig.model_fields)
    rows = [_option(p) for p in shown if not (takes_all and p in settings)]
    needs = f"Needs `ebmcal[{entry.extra}]`." if entry.needs else "Needs no torch."
    parts = [f"### ebmcal {name}", f"{entry.help} {needs}", table(["option", "default", ""], rows) if rows else ""]
    if takes_all:
        parts.append("And every [setting of a run](settings.md) as an option.")
    return "\n\n".join(filter(None, parts))


def _option(parameter):
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = getattr(parameter.default, "value", parameter.default)
    given = "*required*" if parameter.required else "" if default in (None, False, (), []) else f"`{default}`"
    return names, given, parameter.help or ""


def settings():
    """Every setting of a run, by panel."""
    parts = [
        "# Settings of a run",
        "Made from the code. Each is a key of the YAML file (`ebmcal run --config FILE`), a flag with dashes in place "
        "of underscores, and a keyword argument of `ebmcal.run`. *open* means that the recipe decides; `config.yaml` "
        "in the run folder shows what it decided.",
    ]
    fields = RunConfig.model_fields
    for panel in dict.fromkeys(field.json_schema_extra["panel"] for field in fields.values()):
        rows = [_setting(n, f) for n, f in fields.items() if f.json_schema_extra["panel"] == panel]
        parts += [f"## {panel}", table(["setting", "default", "allowed", ""], rows)]
    return "\n\n".join(parts) + "\n"


def _setting(name, field):
    default = field.get_default(call_default_factory=True)
    shown = "*open*" if default is None else "none" if default in ([], {}) else f"`{_yaml(default)}`"
    return f"`{name}`", shown, _allowed(field), field.description


def _yaml(value):
    return (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value).lower() if value is True else str(value)
    )


def _allowed(field):
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{signs[k]} {getattr(m, k)}" for m in field.metadata for k in signs if hasattr(m, k)]
    kind = str(field.annotation).replace("pathlib.", "").replace("typing.", "").replace(" | None", "")
    kind = getattr(field.annotation, "__name__", kind) if isinstance(field.annotation, type) else kind
    kind = {"Path": "path", "str": "text", "bool": "true or false", "int": "whole number", "float": "number"}.get(
        kind, kind
    )
    if kind.startswith("Literal"):
        kind = kind.removeprefix("Literal[").removesuffix("]").replace("'", "`")
    kind = {"list[str]": "list", "list[int]": "list of whole numbers", "dict[str, Path]": "names and paths"}.get(
        kind, kind
    )
    return ", ".join([kind, *limits])


def choices():
    """Every table of choices."""
    from ebmcal.calibrators import CALIBRATORS
    from ebmcal.decisions.conformal import SETS
    from ebmcal.decisions.scores import SCORES
    from ebmcal.metrics import METRICS
    from ebmcal.models.energies import ENERGIES
    from ebmcal.noise.masking import MODES
    from ebmcal.noise.sources import Far, Splice
    from ebmcal.tasks import TASKS
    from ebmcal.training.methods import METHODS

    methods = [
        (f"`{n}`", m.title, m.energy, "yes" if m.uses_noise else "", first_line(m.terms)) for n, m in METHODS.items()
    ]
    energies = [(f"`{n}`", first_line(f)) for n, f in ENERGIES.items()]
    metrics = [
        (
            f"`{n}`",
            m.display,
            "higher" if m.higher_is_better else "lower",
            f"{m.bounds[0]:g} to {m.bounds[1]:g}",
            first_line(m.function),
        )
        for n, m in METRICS.items()
    ]
    calibrators = [
        (f"`{n}`", ", ".join(f"`{k}={v!r}`" for k, v in c().get_params().items()), first_line(c))
        for n, c in CALIBRATORS.items()
    ]
    modes = [(f"`{n}:LM`", first_line(m.draw), first_line(m.lay_out)) for n, m in MODES.items()]
    tasks = [
        (f"`{n}`", t.title, ", ".join(t.label_names), t.metric, "pairs" if t.is_pair else "single texts", t.notes)
        for n, t in TASKS.items()
    ]
    parts = [
        "# Choices",
        "Made from the tables of the code: what `--methods`, `--noise`, `--posthoc`, `--calibrator`, `--metrics` and "
        "`--task` take. [Contributing](../contributing.md) has a worked example of adding to each.",
        "## Methods",
        table(["name", "title", "energy", "uses noise", "loss"], methods),
        f"`auto` trains {' and '.join(f'`{m}`' for m in AUTO_METHODS)} and says which to use.",
        "## Energies",
        table(["name", ""], energies),
        "`scalar` and `scaled-hidden` have weights of their own: [energies](../explanation/energies.md).",
        "## Noise",
        "Written as it is needed, without a language model:",
        table(
            ["source", ""],
            [
                ("`splice`", first_line(Splice)),
                ("`far`", first_line(Far)),
                ("`mlm:ENCODER`", "an encoder with its masked-LM head fills masked words"),
            ],
        ),
        "Written first by a language model, and kept in a store:",
        table(["source", "what is masked", "how it is laid out"], modes),
        "## Calibrators",
        table(["name", "settings and their defaults", ""], calibrators),
        "## Rules",
        table(
            ["`ebmcal decide`", "allowed"],
            [("`--score`", ", ".join(f"`{n}`" for n in SCORES)), ("`--sets`", ", ".join(f"`{n}`" for n in SETS))],
        ),
        "## Metrics",
        table(["name", "as tables show it", "better", "range", ""], metrics),
        "## Tasks",
        table(["name", "title", "labels", "metric", "", "notes"], tasks),
    ]
    return "\n\n".join(parts) + "\n"


def api():
    """The public names, then those of the modules that are used by name."""
    homes = ebmcal._HOMES
    parts = [
        "# Python API",
        "From the docstrings; every example is run by a test. Shapes: n rows, C classes.",
        "## ebmcal",
    ]
    parts += [f"::: {homes[name]}.{name}" for name in sorted(homes, key=str.lower)]
    for title, (name, text) in MODULES.items():
        module = importlib.import_module(name)
        parts += [f"## {title}", f"`{name}`. {text}"]
        parts += [f"::: {name}.{member}" for member in public(module) if f"{name}.{member}" not in _shown()]
    return "\n\n".join(parts) + "\n"


def public(module: ModuleType):
    """The functions and classes in a module's `__all__`, by name."""
    return sorted((n for n in module.__all__ if callable(getattr(module, n))), key=str.lower)


def _shown():
    return {f"{home}.{name}" for name, home in ebmcal._HOMES.items()}


PAGES = {
    "reference/commands.md": commands,
    "reference/settings.md": settings,
    "reference/choices.md": choices,
    "reference/api.md": api,
}
