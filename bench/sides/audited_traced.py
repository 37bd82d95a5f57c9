"""Audited skills with the SDK that records every span."""

from __future__ import annotations

from dataclasses import replace

from bench import sdk
from bench.place import Place
from bench.sides import Side, audited


def make(place: Place) -> Side:
    return replace(audited.make(place), set_up=sdk.set_up)
