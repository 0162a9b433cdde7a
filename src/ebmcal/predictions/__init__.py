"""`Predictions`: logits or probabilities, labels, energies, ids and texts; where the two halves meet.

`rows` holds the data type, `arrays` checks what goes into it, `columns` and `files` bring it to disk and back,
`ensembles` makes one of several.
"""

from ebmcal.predictions.ensembles import ensemble
from ebmcal.predictions.rows import Predictions, align

__all__ = ["Predictions", "align", "ensemble"]
