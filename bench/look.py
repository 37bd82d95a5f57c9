"""What one kind of page took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One kind of page.

    Attributes:
        what: which page.
        rows: how many the memory had.
        took: seconds, each time.
        looked: entries that it looked at.
        cpu: seconds of CPU, the mean: what the page costs where others keep the machine busy.
    """

    what: str
    rows: int
    took: list[float]
    looked: int
    cpu: float
