"""Chaos: a real host under load, disturbed by a seeded schedule of faults, and then judged.

``python -m chaos`` starts servers, workers and a keeper as real processes, publishes skills, kills,
freezes and revokes, waits until all is quiet, and then compares three independent accounts of what
happened: the effects that bodies left in a file, the rows in the audit memory, and the results that
callers see. Whatever the faults, no invocation may be lost, doubled or left open.
"""
