"""`ebmcal run`: the stages from texts to report."""
