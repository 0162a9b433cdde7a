"""How often noise was told from data: by the untouched encoder, at the end of training, and on held-out texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ebmcal.plots.style import INK, add_legend, on_axes, say_empty, tidy
from ebmcal.tables.hardness import TOO_EASY, TOO_HARD, told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Hardness:
    """A line of the figure: a source and a method.

    For example:

        prepare_hardness(run.document)[0].held_out
    """

    name: str
    probe: float | None
    training: float | None
    held_out: float | None


def prepare_hardness(document: Mapping[str, Any]) -> list[Hardness]:
    """Every source and method of a run's `metrics.json`.

    >>> prepare_hardness({"noise": {}})
    []
    """
    sources = document.get("noise") or {}
    return [
        Hardness(f"{t.source}, {t.method}", sources[t.source].get("probe"), t.training, t.held_out)
        for t in told_apart(document)
        if isinstance(sources.get(t.source), Mapping)
    ]


def draw_hardness(data: Sequence[Hardness], ax: "Axes | None" = None) -> "Axes":
    """A row for each source and method; the grey band is neither too easy nor too hard.

    For example:

        draw_hardness(prepare_hardness(run.document)).figure.savefig("hardness.png")
    """
    ax = on_axes(ax)
    if not data:
        return say_empty(ax, "This run used no noise.")
    ax.axvspan(TOO_HARD, TOO_EASY, color="0.5", alpha=0.15, linewidth=0)
    for key, marker, label in (
        ("probe", "d", "untouched encoder"),
        ("training", "o", "energy, training"),
        ("held_out", "s", "energy, held-out"),
    ):
        known = [(getattr(row, key), i) for i, row in enumerate(data) if getattr(row, key) is not None]
        if known:
            places, heights = zip(*known, strict=True)
            ax.scatter(places, heights, marker=marker, label=label, s=36)
    for i, row in enumerate(data):
        ax.text(0.41, i - 0.18, row.name, fontsize=8, color=INK)
    ax.set_yticks([])
    ax.set_ylim(len(data) + 0.4, -0.6)
    ax.set_xlim(0.4, 1.01)
    add_legend(ax, loc="lower left", ncols=3, handlelength=1.0, columnspacing=0.8, fontsize=7)
    return tidy(ax, x="told from data (AUROC)")
