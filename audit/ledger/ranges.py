"""Places side by side, kept as where they begin and how many they are."""

from __future__ import annotations


def extend(ranges: list[tuple[int, int]], index: int, count: int) -> None:
    """So many more from ``index`` on; one range where they follow the last."""
    if ranges and sum(ranges[-1]) == index:
        ranges[-1] = ranges[-1][0], ranges[-1][1] + count
    else:
        ranges.append((index, count))
