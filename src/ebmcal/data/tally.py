"""Counting what a file held that was cleaned or set aside, with the first places where it was met.

Every reader gets one `Tally`; the audit prints it. Nothing is dropped without passing through here.
"""

from collections.abc import Iterable

FIRST = 5  # places remembered for each kind: enough to find the trouble, small for a million bad rows


class Tally:
    """Counts by group ("set_aside", "cleaned", "met") and reason, with the first line or row numbers.

    >>> tally = Tally("line"); tally.add("set_aside", "wrong number of fields", 7); tally.as_dict()["set_aside"]
    {'wrong number of fields': {'count': 1, 'first_lines': [7]}}
    """

    def __init__(self, unit: str = "row"):
        self.unit = unit
        self._groups: dict[str, dict[str, tuple[list[int], list[int]]]] = {}

    def add(self, group: str, reason: str, place: int) -> None:
        count, first = self._groups.setdefault(group, {}).setdefault(reason, ([0], []))
        count[0] += 1
        if len(first) < FIRST:
            first.append(place)

    def count(self, group: str) -> int:
        return sum(count[0] for count, _ in self._groups.get(group, {}).values())

    def as_dict(self, groups: Iterable[str] = ("set_aside", "cleaned", "met")) -> dict:
        return {group: {reason: self._entry(*value) for reason, value in self._sorted(group)} for group in groups}

    def _sorted(self, group: str) -> list:
        return sorted(self._groups.get(group, {}).items())

    def _entry(self, count: list[int], first: list[int]) -> dict:
        return {"count": count[0], f"first_{self.unit}s": list(first)}
