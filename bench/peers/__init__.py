"""The peers, a module each, run by what is beside them.

A module imports its peer and the standard library, and runs in that peer's environment. It has

* if the peer is Celery with other settings, ``make(place)``, as the modules of ``bench.sides``;
* if not, ``work(place)``, which runs tasks until it is ended, and ``publisher(place)``, which gives
  what publishes one task;
* ``prepare(place)``, where tables must be there before.

``place.results`` is the peer's database in PostgreSQL, where it keeps results in one.
"""
