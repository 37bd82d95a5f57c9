"""The skill host: a Celery app whose skills are audited.

:class:`SkillHost` wires the parts into an app of its own, :meth:`SkillHost.adopt` into one that
exists. Celery's built-in tasks and an application's plain tasks stay plain: only what the
:func:`skill` decorator declares is audited.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

from celery import Celery
from celery.app import utils
from celery.app.defaults import DEFAULTS
from kombu.utils.imports import symbol_by_name

from audit.doctor.check import PROBES
from audit.errors import SkillDefinitionError
from tasks.amqp import SkillAMQP
from tasks.coroutine import synchronous
from tasks.declaration import check_declaration
from tasks.doctor import celery_probes
from tasks.merged import BACKEND, SCHEME
from tasks.runtime import runtime_of
from tasks.task import SkillTask
from tasks.worker import AuditStep

AMQP: Final = f"{SkillAMQP.__module__}:{SkillAMQP.__name__}"

#: As text, for nobody but beat needs it.
SCHEDULER: Final = "tasks.beat:SkillScheduler"

_URL_SETTING: Final = "audit_memory_url"

App = TypeVar("App", bound=Celery)


class SkillHost(Celery):
    """A Celery app with everything a skill needs."""

    amqp_cls = AMQP

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _wire(self)

    def skill(self, skill_id: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """As :func:`skill`, in this app."""
        return skill(skill_id, app=self, **options)

    @staticmethod
    def adopt(app: App) -> App:
        """Make an existing Celery app a host of skills; its plain tasks stay plain.

        Call it where the app is made, before anything is published: the messages' headers are
        written by the app's AMQP class, which is replaced here. It becomes Celery's current app
        again, unless it is not meant to be one: the import of this package made another.

        Raises:
            SkillDefinitionError: the app has an AMQP class of its own.
        """
        if not _is_host(app):
            if app.amqp_cls != Celery.amqp_cls:
                raise SkillDefinitionError(
                    f"the app has an AMQP class of its own, {app.amqp_cls}: derive it from {AMQP}"
                )
            app.amqp_cls = AMQP
            app.__dict__.pop("amqp", None)
        _wire(app)
        if app.set_as_current:
            app.set_current()
        return app


def _is_host(app: Celery) -> bool:
    """Whether the app's messages carry the caller; its AMQP class may derive from ours."""
    return issubclass(symbol_by_name(app.amqp_cls), SkillAMQP)


def _wire(app: Celery) -> None:
    runtime_of(app)
    setattr(app, PROBES, partial(celery_probes, app))
    # The memory's URL has a password in it, and `inspect conf` and `celery report` show settings.
    if not utils.HIDDEN_SETTINGS.search(_URL_SETTING):
        hidden = f"{utils.HIDDEN_SETTINGS.pattern}|{_URL_SETTING}"
        utils.HIDDEN_SETTINGS = re.compile(hidden, utils.HIDDEN_SETTINGS.flags)
    app.loader.override_backends = {**app.loader.override_backends, SCHEME: BACKEND}
    app.steps["worker"].add(AuditStep)
    app.add_defaults(lambda: _own_scheduler(app))


def _own_scheduler(app: Celery) -> dict[str, str]:
    """Called by Celery once the configuration is there: beat's scheduler, unless it names another.

    Celery puts what is added above the configuration, so it must not be added where that says
    something; ours does what the usual one does, so that one may stand there.
    """
    names_another = app.conf.beat_scheduler not in (DEFAULTS["beat_scheduler"], SCHEDULER)
    return {} if names_another else {"beat_scheduler": SCHEDULER}


def skill(
    skill_id: str,
    *,
    version: str = "",
    app: Celery | None = None,
    base: type[SkillTask] = SkillTask,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function as a skill.

    Args:
        skill_id: the Celery name of the task, e.g. ``"obs.triage-alert"``.
        version: the skill's version, e.g. ``"1.0.0"``.
        app: the app it belongs to; without one, the host's own ``tasks.app``.
        base: a subclass of :class:`SkillTask`.
        options: Celery's task options (``bind``, ``acks_late``, ``soft_time_limit``, ...).

    Raises:
        SkillDefinitionError: id, version or an option cannot be used; the text says why.
    """
    if not issubclass(base, SkillTask):
        raise SkillDefinitionError(f"skill {skill_id!r}: base must be a subclass of SkillTask")
    if "name" in options:
        raise SkillDefinitionError(f"skill {skill_id!r}: its id is its name, leave out name=")
    check_declaration(skill_id, version)
    if app is None:
        raise SkillDefinitionError(f"skill {skill_id!r}: say in which app, with app=")
    if not _is_host(app):
        raise SkillDefinitionError(
            f"skill {skill_id!r}: its app is no skill host, call SkillHost.adopt(app) first"
        )
    # Celery would share the task with every app of the process, hosts or not.
    options.setdefault("shared", False)
    declare = app.task(name=skill_id, base=base, version=version, **options)

    def register(function: Callable[..., Any]) -> Any:
        return declare(synchronous(function) if iscoroutinefunction(function) else function)

    return register
