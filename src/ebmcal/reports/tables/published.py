"""The results of the paper (RoBERTa-base, one run): method → test set → (performance, ECE).

Performance is accuracy, for CoLA the Matthews correlation. The paper defines its ECE class-wise with 20 bins; the
authors' scripts compute a top-label ECE under the same name, so it is not certain which one was published.
"""

PUBLISHED_NOTE = (
    "Published: He et al. 2021, RoBERTa-base, one run. The paper defines its ECE class-wise (20 bins); "
    "the authors' scripts compute it top-label."
)

TEST_SETS = {
    "sst2": "SST-2", "mnli": "MNLI", "mnli_mm": "MNLI(mm)", "qnli": "QNLI", "qqp": "QQP", "mrpc": "MRPC",
    "cola": "CoLA", "rte": "RTE", "wnli": "WNLI", "average": "Average",
}  # fmt: skip

_ROWS = {
    "baseline": ".942/.050 .876/.067 .872/.068 .929/.043 .904/.034 .862/.133 .539/.182 .724/.279 .571/.058 .802/.102",
    "scaling-binning (train)": (
        ".940/.036 .872/.051 .869/.056 .931/.034 .904/.035 .843/.092 .586/.146 .717/.271 .457/.144 .791/.096"
    ),
    "temperature (train)": (
        ".942/.042 .876/.058 .872/.060 .929/.030 .904/.034 .862/.126 .539/.175 .724/.275 .571/.063 .802/.096"
    ),
    "poscal": ".944/.040 .876/.067 .872/.067 .930/.039 .905/.032 .867/.129 .540/.184 .789/.206 .571/.060 .810/.092",
    "scalar": ".942/.033 .871/.038 .871/.047 .927/.016 .899/.034 .862/.098 .540/.150 .753/.207 .542/.033 .801/.073",
    "hidden": ".956/.032 .869/.032 .868/.044 .923/.016 .900/.033 .867/.099 .545/.131 .797/.148 .542/.036 .807/.063",
    "sharp-hidden": (
        ".947/.038 .875/.027 .872/.031 .930/.016 .900/.032 .862/.089 .563/.133 .811/.182 .571/.073 .815/.069"
    ),
    "scaling-binning (dev)": (
        ".944/.019 .876/.030 .870/.032 .931/.021 .905/.021 .862/.062 .557/.048 .731/.042 .542/.189 .802/.052"
    ),
    "temperature (dev)": (
        ".942/.037 .876/.024 .872/.026 .929/.018 .904/.026 .862/.126 .539/.109 .724/.235 .571/.046 .802/.072"
    ),
}


def _pair(text: str) -> tuple[float, float]:
    performance, ece = text.split("/")
    return float(performance), float(ece)


PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    method: dict(zip(TEST_SETS, map(_pair, row.split()), strict=True)) for method, row in _ROWS.items()
}


def published_set(task: str | None, test_set: str = "test") -> str | None:
    """The key of a test set in `PUBLISHED`, or None if the paper has no such task.

    >>> published_set("SST-2"), published_set("mnli", "test_mismatched"), published_set("mine")
    ('sst2', 'mnli_mm', None)
    """
    name = "".join(c for c in (task or "").lower() if c.isalnum())
    if name == "mnli" and "mismatched" in test_set:
        return "mnli_mm"
    return name if name in TEST_SETS and name != "average" and test_set.startswith("test") else None
