"""Writes the tables that come from the code or from results into the pages, between `<!-- NAME -->` and `<!-- end -->`.

python docs/generate.py               # update all pages
python docs/generate.py --check       # exit with 1 if a page is out of date
python docs/generate.py --pictures    # also draw docs/assets/reliability-{light,dark}.svg again
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def settings() -> str:
    """All fields of `RunConfig`, by group."""
    from ebmcal.config import RunConfig

    groups: dict[str, list[list[str]]] = {}
    for name, field in RunConfig.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = ", ".join(map(str, default)) if isinstance(default, list) else default
        shown = "" if default in (None, {}, []) else f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"
        extra = field.json_schema_extra
        key = f"**`{name}`**" if extra["common"] else f"`{name}`"
        groups.setdefault(extra["panel"], []).append([key, shown, field.description])
    header = ("setting", "default", "meaning")
    return "\n\n".join(f"## {panel}\n\n{table(header, rows)}" for panel, rows in groups.items())


def commands() -> str:
    """All commands with their arguments and options."""
    import typer

    from ebmcal.cli import COMMANDS, build_app

    parts = []
    for name in COMMANDS:
        found = typer.main.get_command(build_app(name))
        for word in name.split():
            found = found.commands[word]
        parts.append(f"## ebmcal {name}\n\n{found.help}")
        if name in ("run", "noise generate"):
            parts[-1] += " The options below are joined by those in [settings](settings.md)."
        rows = [
            _parameter(parameter)
            for parameter in found.params
            if parameter.name != "help" and not _is_setting(name, parameter.name)
        ]
        parts.append(table(("argument or option", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _is_setting(command: str, name: str | None) -> bool:
    from ebmcal.config import RunConfig

    return command in ("run", "noise generate") and name in RunConfig.model_fields


def _parameter(parameter: object) -> list[str]:
    is_option = parameter.param_type_name == "option"
    name = (
        ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else (parameter.metavar or parameter.name)
    )
    default = parameter.default
    if callable(default) or default is None or default is False or default == [] or not is_option:
        shown = ""
    else:
        shown = f"`{getattr(default, 'value', default)}`"
    return [f"`{name}`" if is_option else f"`{name.upper()}`", shown, parameter.help or ""]


#: Method -> what it does, and where it was published.
ABOUT_METHODS = {
    "baseline": ("plain finetuning with cross-entropy", ""),
    "scalar": ("also learns to distinguish data from noise; the energy is a linear layer", "He et al. 2021"),
    "hidden": ("the same; the energy is −logsumexp of the logits", "He et al. 2021"),
    "sharp-hidden": ("the same; the energy is −max of the logits", "He et al. 2021"),
    "label-smoothing": ("spreads a part of each label over all classes", "Szegedy et al. 2016"),
    "hidden-smoothing": ("`hidden` with label smoothing", ""),
    "noise-entropy": ("trains for uniform probabilities on noise, without an energy", "NoiER 2021"),
    "hidden-entropy": ("`hidden` and `noise-entropy` together", ""),
    "poscal": ("moves each probability towards the label frequency of its bin", "Jung et al. 2020"),
    "poscal-kl": ("the same, with the KL divergence as the distance", "Jung et al. 2020"),
    "focal": ("gives less weight to texts that are already predicted well", "Mukhoti et al. 2020"),
    "mixup": ("mixes the features of two texts, and their labels", "Park and Caragea 2022"),
    "manifold": ("also trains on shifted word embeddings, with mixed labels or for high entropy", "Kong et al. 2020"),
    "masked-lm": ("keeps the masked-LM loss of pretraining as a second loss", "He et al. 2023"),
    "l2-sp": ("penalises the distance from the pretrained weights", "He et al. 2023"),
    "sngp": ("has a Gaussian process as the last layer", "Liu et al. 2020"),
    "laplace": ("the baseline, then less confidence where the last layer is uncertain", "Daxberger et al. 2021"),
}


def methods() -> str:
    """All training methods."""
    from ebmcal.methods import METHODS

    rows = [
        [f"`{name}`", ABOUT_METHODS[name][0], "yes" if info.uses_noise else "", ABOUT_METHODS[name][1]]
        for name, info in METHODS.items()
    ]
    return table(("method", "what it does", "noise", "reference"), rows)


def summary(documented: object) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())


def calibrators() -> str:
    """All calibrators with the rows they need for two and for ten classes."""
    from ebmcal.calibration import CALIBRATORS

    rows = [
        [f"`{name}`", f"{kind().min_rows(2):,}", f"{kind().min_rows(10):,}", summary(kind)]
        for name, kind in CALIBRATORS.items()
    ]
    return table(("calibrator", "rows needed, 2 classes", "10 classes", "what it is"), rows)


def metrics() -> str:
    """All metrics."""
    from ebmcal.metrics import DEFAULT_METRICS, METRICS

    rows = [
        [
            f"`{name}`",
            summary(metric.function),
            "higher" if metric.higher_is_better else "lower",
            "yes" if name in DEFAULT_METRICS else "",
        ]
        for name, metric in METRICS.items()
    ]
    return table(("metric", "meaning", "better", "by default"), rows)


#: Rows of the speed table: script -> a pattern in the name of a measurement.
SPEED = {
    "training": r"size, (fp32|bf16)$|training step, minilm size, .*peak$", "busy_neighbour": ", ebmcal, ",
    "bulk_prediction": "^ebmcal predict|^Ray", "serving": "64 clients, against plain",
    "sampling": r"SmolLM2.*(fp32|bf16)$", "metrics": "ECE, 1e6 × 3|bootstrap", "calibrators": "temperature",
}  # fmt: skip


def speed() -> str:
    """Ratios of the benchmarks."""
    import json

    rows = []
    for script, pattern in SPEED.items():
        path = ROOT / "benchmarks" / f"{script}.json"
        for row in json.loads(path.read_text()) if path.exists() else ():
            if row.get("ratio") and re.search(pattern, row["name"]) and "difference" not in row["name"]:
                goal = f"{row['goal'] or ''}"
                if row["goal"]:  # times of busy_neighbour should be small, other ratios large
                    is_met = row["ratio"] <= row["goal"] if script == "busy_neighbour" else row["ratio"] >= row["goal"]
                    goal += "" if is_met else ", missed"
                ratio = f"{row['ratio']:.3g}"
                if "ratio_with_startup" in row:
                    ratio += f" ({row['ratio_with_startup']:.2g} with start-up)"
                rows.append([row["name"], row["reference"], ratio, goal, script])
    return table(("what", "compared with", "ratio", "goal", "script"), rows)


def faults() -> str:
    """The trials of benchmarks/faults.json by kind of fault."""
    import json

    found = json.loads((ROOT / "benchmarks" / "faults.json").read_text())
    columns = ("trials", "correct", "read", "error", "failure")
    rows = [[row["fault"], *(f"{row[name]:,}" for name in columns)] for row in found["faults"]]
    total = ["**total**", *(f"{sum(row[name] for row in found['faults']):,}" for name in columns)]
    about = f"{found['minutes']:.0f} minutes, version {found['version']}:"
    return f"{about}\n\n{table(('fault', *columns), [*rows, total])}"


def study_blocks() -> dict[str, Callable[[], str]]:
    """The tables of benchmarks/study_tables.py."""
    spec = importlib.util.spec_from_file_location("study_tables", ROOT / "benchmarks" / "study_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BLOCKS


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings, "commands": commands, "methods": methods, "calibrators": calibrators, "metrics": metrics,
    "speed": speed, "faults": faults, **study_blocks(),
}  # fmt: skip

PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]

_MARKERS = re.compile(rf"<!-- ({'|'.join(BLOCKS)}) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """A page with its generated blocks up to date."""
    return _MARKERS.sub(lambda m: f"<!-- {m[1]} -->\n\n{BLOCKS[m[1]]()}\n\n<!-- end -->", text)


def outdated() -> dict[Path, str]:
    """The pages that are not up to date, with the text they should have."""
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    return {path: new for path, old in pages.items() if (new := filled(old)) != old}


def draw_pictures() -> None:
    """A baseline on MNLI before and after its cross-fitted temperature, for light and dark pages."""
    import matplotlib.pyplot as plt
    import pandas as pd

    from ebmcal import Predictions
    from ebmcal.reports.plots import reliability_diagram, to_svg

    study, trial = ROOT / "results" / "cross_fit", ("mnli", "baseline-seed2")
    test = Predictions.read(study.joinpath("predictions", *trial, "test.parquet"))
    fitted = pd.read_csv(study / "temperatures.csv").set_index(["task", "model", "fitted_on"])["temperature"]
    temperature = fitted[(*trial, "one fold")]
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.9), gridspec_kw={"bottom": 0.36, "wspace": 0.3})
    reliability_diagram(test, axes[0], name="as trained")
    reliability_diagram(test.replace(logits=test.logits / temperature), axes[1], name="calibrated")
    svg = to_svg(figure, "readme", "Reliability diagrams of a finetuned classifier before and after calibration")
    # With its own background: the theme of the site may differ from that of the system, which chooses the picture.
    dark = {"paper": "#1e2129", "ink": "#e6e8eb", "muted": "#9aa3ad", "grid": "#444b54"}
    dark |= {"blue": "#56b4e9", "vermillion": "#ff8c42"}
    for name, colours in (("light", {}), ("dark", dark)):
        text = re.sub(r"var\(--fig-(\w+),(#\w+)\)", lambda m, c=colours: c.get(m[1], m[2]), svg)
        background = f'<rect width="100%" height="100%" fill="{colours.get("paper", "#ffffff")}"/>'
        text = re.sub(r"(<svg[^>]*>)", lambda m, b=background: m[1] + b, text, count=1)
        (DOCS / "assets" / f"reliability-{name}.svg").write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    pages = outdated()
    if "--check" in arguments:
        for path in pages:
            print(f"{path.relative_to(ROOT)} is out of date. Run: python docs/generate.py")
        return int(bool(pages))
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
        print(f"updated {path.relative_to(ROOT)}")
    if "--pictures" in arguments:
        draw_pictures()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
