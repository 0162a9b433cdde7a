"""A model in use, watched without labels: the accuracy to expect, drift with a stated false-alarm rate, unusual texts.

    ebmcal.watch("model", "log.parquet").alarms

`log` reads what was predicted and when, `expecting` estimates accuracy, `drift` tests, `watch` joins them. No torch.
"""
