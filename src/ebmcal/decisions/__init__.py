"""Decisions on predictions, with promises: answer or abstain, label sets, unusual texts. No torch.

rule = decide("model", "calibration.parquet", max_error=0.05, confidence=0.9)
rule.decide(predictions).answers
"""

from ebmcal.decisions.fitting import fit_rule
from ebmcal.decisions.in_model import RULE_FILE, attach_rule, attached_rule, decide
from ebmcal.decisions.rule import Decisions, Rule
from ebmcal.decisions.scores import SCORES
from ebmcal.decisions.unusual import UNUSUAL_BY

__all__ = [
    "RULE_FILE", "SCORES", "UNUSUAL_BY", "Decisions", "Rule", "attach_rule", "attached_rule", "decide", "fit_rule",
]  # fmt: skip
