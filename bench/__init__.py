"""Measures what the audit costs: ``python -m bench``, or ``make bench``.

Four sections, each against the same server of our own and never against a recorded figure:

* ``throughput``: noop tasks a second, bare Celery beside Celery with OpenTelemetry and audited
  skills, in interleaved rounds, with bare Celery against itself as the control;
* ``emit``: one emit of the memory in microseconds, beside the least that the server would take;
* ``roundtrip``: ``.delay().get()`` with one task in flight;
* ``memory``: what a worker holds (memory, descriptors, connections) over many invocations.

No figure makes the run fail: only an error does, and a lost task or row is one.
"""
