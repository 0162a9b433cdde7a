"""Pictures of the site, drawn from predictions in the repository while it is built.

Inline SVG whose colours are CSS variables: they follow the light or dark scheme of the page. The colours are Okabe and
Ito's, every series has a dash or hatch of its own, and each picture says in words what it shows.
"""

from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ebmcal import plots
from ebmcal.metrics import ece_classwise, ece_top_label
from ebmcal.plots.style import LOOKS, add_legend, tidy
from ebmcal.plots.svg import to_svg
from ebmcal.predictions import Predictions

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "results" / "study" / "predictions" / "rt"
#: The models that pictures show: methods of the study, on film reviews.
ENERGY = "hidden-smoothing"
SHOWN = ("baseline", ENERGY)


def predictions(method, split="test"):
    """Predictions of the study, first seed."""
    return Predictions.read(STUDY / f"{method}-seed1" / f"{split}.parquet")


def side_by_side(draw, bottom, size=(7.8, 3.6)):
    """One panel for each model that is shown."""
    figure = Figure(figsize=size)
    figure.subplots_adjust(left=0.08, right=0.98, top=0.92, bottom=bottom, wspace=0.24)
    for ax, method in zip(figure.subplots(1, len(SHOWN)), SHOWN, strict=True):
        draw(method, ax)
    return figure


def reliability():
    """Reliability of the baseline and of the default method."""
    return side_by_side(
        lambda method, ax: plots.draw_reliability(plots.prepare_reliability(predictions(method), method), ax=ax),
        bottom=0.32,
    )


def noise_floor(sizes=(100, 200, 400, 800, 1600, 3200, 6400), rounds=60):
    """ECE of a model that is calibrated by construction, against the number of rows."""
    rng, probs = np.random.default_rng(0), predictions(ENERGY).probabilities()
    ax = tidy(
        Figure(figsize=(5.2, 3.2), layout="constrained").subplots(), x="test rows", y="measured ECE, true value 0"
    )
    for metric, name, look in ((ece_top_label, "top-label", LOOKS[1]), (ece_classwise, "class-wise", LOOKS[4])):
        means = []
        for n in sizes:
            drawn = (probs[rng.integers(0, len(probs), n)] for _ in range(rounds))
            means.append(np.mean([metric((rng.random(len(p)) < p[:, 1]).astype(int), probs=p) for p in drawn]))
        ax.plot(sizes, means, color=look.color, linestyle=look.line, marker=look.marker, label=name)
    ax.set_xscale("log")
    ax.set_xticks(sizes[::2], [f"{n:,}" for n in sizes[::2]])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    add_legend(ax)
    return ax.figure


def energies():
    """Energies of test texts and of noise, for the model that was taught to tell them apart."""
    named = {"test texts": predictions(ENERGY), "noise, never trained on": predictions(ENERGY, "noise")}
    ax = plots.draw_energy_histogram(plots.prepare_energy_histogram(named))
    return ax.figure


def entropy():
    """Entropy against energy, for both models."""
    return side_by_side(
        lambda method, ax: plots.draw_entropy_energy(plots.prepare_entropy_energy(predictions(method)), ax=ax),
        bottom=0.14,
    )


#: name -> (function, what it shows in words, caption)
PICTURES = {
    "reliability": (
        reliability,
        "Two reliability plots. The baseline's bars end well below the diagonal at high confidence, most of its texts "
        "near one. The bars of hidden-smoothing are nearer to the diagonal and its confidences more spread.",
        "How often two models are right at each level of confidence: the plain baseline and hidden-smoothing, 600 test "
        "sentences, one seed (results/study). On the diagonal a model is calibrated.",
    ),
    "noise-floor": (
        noise_floor,
        "Two falling lines: measured calibration error against the number of rows, of a model whose true error is 0.",
        "Measured ECE of a model whose true ECE is 0: mean of 60 draws of labels from its own probabilities, 20 bins.",
    ),
    "energies": (
        energies,
        "Two overlapping histograms of energies: test texts lie a little lower than spliced noise.",
        "Energies of test sentences and of spliced noise, hidden-smoothing, one seed (results/study). They overlap: "
        "splice is hard noise.",
    ),
    "entropy": (
        entropy,
        "Two clouds of points, entropy against energy, of baseline and hidden-smoothing; both rise to the right.",
        "Entropy of the answer against the energy of the text, a point for each test sentence: baseline and "
        "hidden-smoothing.",
    ),
}


def draw(name):
    """The picture as a `<figure>`."""
    make, description, caption = PICTURES[name]
    caption = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure class="picture">{to_svg(make(), name, description)}{caption}</figure>'
