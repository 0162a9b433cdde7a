"""Prediction of files and pipes of any length in constant memory, on one machine or on a Ray cluster.

`job` puts it together: `reading` yields chunks of rows with the user's columns, `columns` predicts a chunk and arranges
its output, `writing` encodes it and makes jobs resumable.
"""

from ebmcal.prediction.job import Summary, predict_file

__all__ = ["Summary", "predict_file"]
