"""Soak: what a host holds over hundreds of thousands of invocations, failures and outages.

``python -m soak`` publishes to a real worker whose children are recycled, beside a keeper that
seals, and disturbs them with the faults of :mod:`chaos`. What every process holds is looked at all
the time. In the end memory, handles, connections and spool must be where they were after the
warm-up, each invocation must be on record exactly once, and the ledger must verify. Bare Celery
under the same load is the control: what it grows by is not the audit's.
"""
