"""How a model holds up when texts change: words replaced, typos, case, order, cut ends, additions, negation.

    ebmcal.stress_test("model", "test.csv").report("stress.html")

`changes` change texts, `suites` reads tests that are data (YAML), `measuring` sets models on both, `page` shows it.
"""
