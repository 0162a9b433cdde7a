"""Predictions over files and pipes of any length, in constant memory: `predict_file`, what `ebmcal predict` does."""

from ebmcal.streaming.job import Summary, predict_file

__all__ = ["Summary", "predict_file"]
