"""`ebmcal run`: the stages from texts to report, the folder they fill and the cache they share."""
