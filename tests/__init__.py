"""The tests: `unit` mirrors the source, `integration` drives real programs."""
