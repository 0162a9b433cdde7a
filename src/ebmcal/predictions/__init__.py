"""The output of a classifier: `Predictions`, made by the training half or read from a file that any model wrote.

Metrics, calibrators, plots and reports use it. `arrays` has the class and validates what goes into it, `files` reads
and writes it. No torch.
"""

from ebmcal.predictions.arrays import Predictions, align, ensemble

__all__ = ["Predictions", "align", "ensemble"]
