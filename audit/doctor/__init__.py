"""Checks of a skill host: what was seen, how bad it is, and what to do about it."""
