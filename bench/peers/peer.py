"""What the bench compares itself with: every peer, and how it is spoken to.

Nothing here imports a peer: those live in environments of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.crew import Variant

#: What is told of start and end, where it is the same for several.
OVERWRITTEN: Final = "no: the end overwrites the start"
BOTH: Final = "yes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sql:
    """How results in PostgreSQL are counted, removed, and, for what is no Celery, released."""

    done: str
    forget: str
    release: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """One peer.

    Attributes:
        name: its module in ``bench.peers``.
        label: the words for it.
        records: whether an invocation's start and its end are both on record afterwards.
        celery: whether it is Celery, on the same Redis broker as the others.
        workers: the processes that run its tasks.
        package: what an environment of its own is installed for; none: it comes with the project.
        sql: its results are in PostgreSQL.
        helper: whether its module is also a program that works beside the worker.
    """

    name: str
    label: str
    records: str
    celery: bool = True
    workers: str = "prefork, 2 children"
    package: str | None = None
    sql: Sql | None = None
    helper: bool = False


PEERS: Final = (
    Peer(name="track_started", label="Celery, task_track_started", records=OVERWRITTEN),
    Peer(
        name="camera",
        label="Celery, events and a camera",
        records="yes, unless an event got lost",
        helper=True,
    ),
    Peer(
        name="sqlalchemy_results",
        label="Celery, SQLAlchemy results, extended, track_started",
        records=OVERWRITTEN,
        sql=Sql(
            done="SELECT count(*) FROM celery_taskmeta WHERE status = 'SUCCESS'",
            forget="TRUNCATE celery_taskmeta",
        ),
    ),
    Peer(
        name="django_results",
        label="Celery, django-celery-results, extended, track_started",
        records=BOTH,
        package="django-celery-results",
        sql=Sql(
            done="SELECT count(*) FROM django_celery_results_taskresult WHERE status = 'SUCCESS'",
            forget="TRUNCATE django_celery_results_taskresult",
        ),
    ),
    Peer(
        name="dbos_queue",
        label="DBOS, a queue of workflows",
        records="yes (start: when claimed)",
        celery=False,
        workers="2 processes, threads",
        package="dbos",
        sql=Sql(
            done="SELECT count(*) FROM dbos.workflow_status JOIN dbos.workflow_output"
            " USING (workflow_uuid) WHERE status = 'SUCCESS'",
            forget="TRUNCATE dbos.workflow_status, dbos.workflow_input, dbos.workflow_output"
            " CASCADE",
            release="UPDATE dbos.workflow_status SET queue_name = 'live' WHERE queue_name = 'held'",
        ),
    ),
    Peer(
        name="procrastinate_queue",
        label="procrastinate",
        records="yes, but no result",
        celery=False,
        workers="2 processes, 1 job each",
        package="procrastinate",
        sql=Sql(
            done="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
            forget="TRUNCATE procrastinate_jobs CASCADE",
            release="UPDATE procrastinate_jobs SET queue_name = 'live' WHERE queue_name = 'held';"
            """ SELECT pg_notify('procrastinate_queue_v1#live',
                '{"type": "job_inserted", "job_id": 0}')""",
        ),
    ),
)


def records(variant: Variant) -> str:
    """What a variant of ours has of start and end."""
    if variant.audited:
        return BOTH
    return "no: one span, at the end" if variant is Variant.TRACED else "no: the end alone"


def name_of(one: Peer | Variant) -> str:
    """What the command line calls it."""
    return one.name if isinstance(one, Peer) else one.name.lower()
