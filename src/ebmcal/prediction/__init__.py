"""Prediction of files and pipes of any length in constant memory, ensembles, and distribution over Ray.

`job` puts it together: `reading` yields rows with the user's columns, `chunk_predictor` predicts them chunk by chunk,
`columns` arranges and `writing` encodes the output, `chunks` makes jobs resumable, `ray_engine` runs them on a cluster.
"""

from ebmcal.prediction.ensemble import Ensemble
from ebmcal.prediction.job import Summary, predict_file

__all__ = ["Ensemble", "Summary", "predict_file"]
