"""What ``audit doctor`` asks of Celery: broker, results, pools, limits, plain tasks, beat, Flower.

Nothing of it stays, and it publishes no skill. No line holds the address of a broker or a result
backend beyond scheme, host and port.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend

from audit.doctor.check import Check, Probe, bad, kind_of, named, ok, skipped, warn
from audit.doctor.flower import flower_probes
from tasks.beat import is_audited, schedule_faults
from tasks.caller import BUILT_IN
from tasks.merged import Merging
from tasks.task import SkillTask

#: Pools, by the module Celery keeps each in, and what they do not do.
IGNORED: Final = {
    "solo": "time limits, and a revoke reaches a skill only when its body has ended",
    "thread": "time limits, and cannot terminate a running skill",
    "gevent": "soft time limits, and hard ones end a skill only where it waits",
    "eventlet": "soft time limits, and hard ones end a skill only where it waits",
}
#: Seconds in which workers answer.
INSPECT_SECONDS: Final = 1.0

#: Brokers that answer and yet carry no audited host, by the driver kombu names, and why.
UNFIT: Final = {
    "memory": "its messages live and die with one process",
    "filesystem": "it loses messages, and has neither events nor remote control",
    "sql": "it has neither events nor remote control, and can lose messages",
}

_SPELLED: Final = {"threads": "thread", "processes": "prefork"}
_KEEPS_LIMITS: Final = "prefork"
_HOST: Final = re.compile(r"[A-Za-z0-9._:/-]{1,255}")
_SHIPPED: Final = Path(__file__).parents[1] / "flowerconfig.py"
_PREFORK: Final = "use the prefork pool where skills have limits"
_IMPORT: Final = "mend what stops the app's modules from being imported"
_loading: Final = threading.Lock()


def celery_probes(app: Any) -> list[Probe]:
    """Every check that must know Celery; nothing is asked before they are made."""
    shipped = _SHIPPED if _SHIPPED.is_file() else None
    return [
        Probe(
            name="broker",
            look=lambda: broker(app),
            advice="start the broker, or mend CELERY_BROKER_URL (broker_url)",
        ),
        Probe(
            name="result backend",
            look=lambda: result_backend(app),
            advice="start the backend, or mend CELERY_RESULT_BACKEND (result_backend)",
        ),
        Probe(name="pool", look=lambda: configured_pool(app)),
        Probe(name="worker pools", look=lambda: worker_pools(app), advice="see the broker's line"),
        Probe(name="time limits", look=lambda: time_limits(app), advice=_IMPORT),
        Probe(name="plain tasks", look=lambda: plain_tasks(app), advice=_IMPORT),
        Probe(name="beat", look=lambda: beat(app), advice=_IMPORT),
        *flower_probes(os.environ, Path.cwd(), shipped),
    ]


# --- services -----------------------------------------------------------------------------------


def broker(app: Any) -> Check:
    """Whether both the broker that is read and the one that is written to answer."""
    places, unfit = [], set()
    for connection in (app.connection_for_read(), app.connection_for_write()):
        with connection:
            places.append(_place(connection))
            _connect(connection)
            unfit.add(UNFIT.get(connection.transport.driver_type))
    seen = f"{' and '.join(dict.fromkeys(places))} answers"
    if whys := sorted(filter(None, unfit)):
        return warn("broker", f"{seen}, but {'; '.join(whys)}", "use Redis, Valkey or RabbitMQ")
    return ok("broker", seen)


def result_backend(app: Any) -> Check:
    """Whether results could be read; asked for one that there is not."""
    backend = app.backend
    if isinstance(backend, DisabledBackend):
        return warn(
            "result backend",
            "none: no caller gets a result, and none can wait for one",
            "set result_backend: until then no caller hears of AuditEmitFailed (503), nor how its"
            " skill ended; if nobody waits, all is well",
        )
    if isinstance(backend, RPCBackend):
        return skipped("result backend", "results come by the broker: see its line")
    if isinstance(backend, Merging) and backend.misfit is not None:
        return bad(
            "result backend",
            f"no worker starts with it: {backend.misfit}",
            "give result_backend the memory's own URL behind merged+, or leave merged+ out",
        )
    backend.get_task_meta(f"audit-doctor-{uuid4()}", cache=False)
    return ok("result backend", f"{type(backend).__name__} answers")


def _connect(connection: Any) -> None:
    connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def _place(connection: Any) -> str:
    # Of some transports the host is the whole URL, with a password in it.
    host = str(connection.hostname or "")
    port = f":{connection.port}" if connection.port else ""
    shown = f"{host}{port}" if _HOST.fullmatch(host) and "//" not in host else "..."
    return f"{connection.transport_cls if isinstance(connection.transport_cls, str) else ''}" + (
        f"://{shown}"
    )


# --- workers ------------------------------------------------------------------------------------


def configured_pool(app: Any) -> Check:
    """The pool of the settings; a worker's command line goes before it."""
    pool = str(app.conf.worker_pool)
    kind = pool_kind(pool)
    if fault := _fault_of(kind):
        return warn("pool", f"worker_pool is {kind}: it {fault}", _PREFORK)
    return ok("pool", f"worker_pool is {kind}")


def worker_pools(app: Any) -> Check:
    """The pools that running workers say they have."""
    name = "worker pools"
    try:
        with app.connection_for_write() as connection:
            # By itself inspect would knock at a broker that is down for as long as it takes.
            _connect(connection)
            ask = app.control.inspect(timeout=INSPECT_SECONDS, connection=connection)
            answers = ask.stats()
    except Exception as error:
        return skipped(name, f"workers cannot be asked: {kind_of(error)}", "see the broker's line")
    pools = {
        worker: pool_kind(str((stats.get("pool") or {}).get("implementation", "")))
        for worker, stats in (answers or {}).items()
        if isinstance(stats, Mapping)
    }
    if not pools:
        return skipped(name, "no worker answered", "start one, or look at its log if one runs")
    said = [
        f"{worker} ({kind}) {fault}" for worker, kind in pools.items() if (fault := _fault_of(kind))
    ]
    if said:
        return warn(name, "; ".join(sorted(said)), _PREFORK)
    return ok(name, named(f"{worker} ({kind})" for worker, kind in pools.items()))


def pool_kind(spelled: str) -> str:
    """``thread`` for ``threads`` as for ``celery.concurrency.thread:TaskPool``."""
    word = spelled.partition(":")[0].rpartition(".")[2]
    return _SPELLED.get(word, word)


def _fault_of(kind: str) -> str:
    """What is wrong with a pool; nothing is with the one that keeps every limit."""
    if kind in IGNORED:
        return f"ignores {IGNORED[kind]}"
    return "" if kind == _KEEPS_LIMITS else "is not known to keep time limits"


# --- tasks --------------------------------------------------------------------------------------


def time_limits(app: Any) -> Check:
    """Skills that neither their declaration nor the settings ever end."""
    conf, skills = app.conf, list(_skills(_tasks(app)))
    endless = [task.name for task in skills if not (task.time_limit or conf.task_time_limit)]
    if not skills:
        return warn(
            "time limits", "the app has no skill", "declare one with @skill, or set imports"
        )
    if endless:
        return warn(
            "time limits",
            f"skills without a hard time limit: {named(endless)}",
            "set task_time_limit and task_soft_time_limit (a worker's --time-limit does too)",
        )
    return ok("time limits", f"skills: {len(skills)}, each with a hard time limit")


def plain_tasks(app: Any) -> Check:
    """Tasks of the application that leave no rows."""
    plain = unaudited(_tasks(app))
    if plain:
        return warn(
            "plain tasks",
            f"not audited: {named(plain)}",
            "declare with @skill what must leave a trail; if these need none, all is well",
        )
    return ok("plain tasks", "none: everything but Celery's own tasks is audited")


def unaudited(tasks: Iterable[Any]) -> list[str]:
    """The names of those that are neither skills nor Celery's own, in order."""
    return sorted(
        task.name
        for task in tasks
        if not isinstance(task, SkillTask) and not str(task.name).startswith(BUILT_IN)
    )


def beat(app: Any) -> Check:
    """Whether beat would start: every entry of a skill can be audited."""
    schedule, _ = app.conf.beat_schedule or {}, _tasks(app)
    if found := schedule_faults(app, schedule):
        return bad("beat", "; ".join(found), "mend the entries: with them beat does not start")
    skills = sum(is_audited(app, e.get("task"), e.get("options") or {}) for e in schedule.values())
    return ok("beat", f"entries of skills: {skills}, each can be audited")


def _skills(tasks: Iterable[Any]) -> Iterable[SkillTask]:
    return (task for task in tasks if isinstance(task, SkillTask))


def _tasks(app: Any) -> list[Any]:
    """Every task that a worker would have: the modules of the settings are imported."""
    with _loading:
        app.loader.import_default_modules()
        app.finalize()
        return list(app.tasks.values())
