"""Selective prediction with guarantees: answer or abstain, label sets, OOD texts. No torch, except for distances.

    rule = fit_abstention("calibration.parquet", model="model", max_error=0.05, confidence=0.9)
    rule.apply(predictions).answered

`fitting` fits a rule on held-out predictions, `risk_control` tests its guarantee, `rule` applies and stores it, `ood`
scores and flags texts unlike the training data.
"""

from ebmcal.selective.fitting import fit_abstention
from ebmcal.selective.ood import DISTANCES, OOD_SCORES, fit_distance
from ebmcal.selective.rule import SCORES, AbstentionRule, Decisions, read_rule, save_rule

__all__ = [
    "DISTANCES", "OOD_SCORES", "SCORES", "AbstentionRule", "Decisions", "fit_abstention", "fit_distance", "read_rule",
    "save_rule",
]  # fmt: skip
