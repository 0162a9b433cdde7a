"""`Predictions`: logits or probabilities, labels, energies, ids and texts of n rows; the input of the evaluation half.

`rows` holds the data type, `arrays` validates what goes into it, `columns` and `files` read and write it, `ensembles`
matches the rows of several predictions and averages them.
"""

from ebmcal.predictions.ensembles import align, ensemble
from ebmcal.predictions.rows import Predictions

__all__ = ["Predictions", "align", "ensemble"]
