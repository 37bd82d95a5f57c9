"""Measures what the audit costs: ``python -m bench``, or ``make bench``.

Its sections, each against servers of our own and never against a recorded figure:

* ``throughput``: noop tasks a second, bare Celery beside Celery with OpenTelemetry and audited
  skills, in interleaved rounds, with bare Celery against itself as the control;
* ``shape``: the same by workers and children, bare and audited;
* ``peers``: the same beside other ways to have tasks on record;
* ``emit``: one emit of the memory in microseconds, beside the least that the server would take;
* ``roundtrip``: ``.delay().get()`` with one task in flight;
* ``memory``: what a worker holds (memory, descriptors, connections) over many invocations;
* ``sweep``, ``privacy``, ``ledger``, ``board``: the keeper, signing and masking, sealing, pages.

No figure makes the run fail: only an error does, and a lost task or row is one. A peer that cannot
be had is none.
"""
