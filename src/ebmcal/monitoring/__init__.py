"""Monitoring a model in use without labels: accuracy estimation, drift tests, out-of-distribution texts. No torch.

    ebmcal.monitoring.monitor("model", "answers.jsonl").alarms

`log` reads what was predicted and when, `estimation` estimates accuracy, `drift` tests, `windows` combines them for
each window of the log, `page` shows the result.
"""

from ebmcal.monitoring.windows import Monitoring, monitor

__all__ = ["Monitoring", "monitor"]
