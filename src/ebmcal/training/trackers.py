"""Experiment trackers, through the Trainer's own callbacks: which may be used here, and ending what they leave open."""

import importlib
from collections.abc import Sequence

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from ebmcal.errors import EbmcalError, unknown_name

#: Trackers whose report goes on when a training ends, and the function of their package that ends it.
LEFT_OPEN = {"wandb": "finish", "swanlab": "finish", "comet_ml": "end"}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that the Trainer does not know or that cannot be used here."""
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise unknown_name("experiment tracker", name, INTEGRATION_TO_CALLBACK)
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except (ImportError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise EbmcalError(f"The experiment tracker {name} cannot be used: {why}") from error


def close_trackers(names: Sequence[str]) -> None:
    """End the reports that the Trainer leaves open: the next training has one of its own."""
    for name in sorted(set(names) & LEFT_OPEN.keys()):
        getattr(importlib.import_module(name), LEFT_OPEN[name])()
