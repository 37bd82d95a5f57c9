"""Which request class receives the messages of a task: where there are keys, one that verifies."""

from __future__ import annotations

from typing import Any, Final

from celery.worker.request import Request
from kombu.utils.imports import symbol_by_name

from audit.errors import SkillDefinitionError
from tasks.caller import is_built_in, is_skill
from tasks.discretion import make_discreet
from tasks.merged import Merging
from tasks.proof import verifies

#: How a worker receives Celery's own tasks, and where it has keys, plain ones.
DISCREET: Final = "tasks.request:DiscreetRequest"
CARRYING: Final = "tasks.request:CarryingRequest"


def give_requests(app: Any, *, proven: bool) -> None:
    """Set how messages are received, where that must be another way than Celery's.

    What a plain task publishes inherits the context of its message, and its message's signatures
    are published from here: with keys, that must be proven too, or it names nobody.

    Raises:
        SkillDefinitionError: a skill has a request class that does not verify, or with keys, any
            task has; a skill's body is excluded, and the result backend keeps arguments.
    """
    for task in app.tasks.values():
        if is_built_in(task):
            make_discreet(task)
            task.Request = DISCREET
        elif proven and symbol_by_name(task.Request) is Request:
            task.Request = CARRYING
        if getattr(task, "body_excluded", False) and _keeps_arguments(app):
            raise SkillDefinitionError(_KEPT.format(task.name))
        if (proven or is_skill(task)) and not verifies(task):
            raise SkillDefinitionError(_UNFIT.format(task.name, _wanted(task)))


_KEPT: Final = (
    "skill {}: its body is excluded, and result_extended would keep its arguments in the result"
    " backend: leave that setting out"
)
_UNFIT: Final = "task {}: its Request must derive from {}, which verifies its messages"


def _wanted(task: Any) -> str:
    return "tasks.request." + ("SkillRequest" if is_skill(task) else "CarryingRequest")


def _keeps_arguments(app: Any) -> bool:
    """Whether Celery's own result backend stores a task's arguments beside its result."""
    kind = type(app.backend)
    own = kind.__module__.startswith("celery.") or issubclass(kind, Merging)
    return own and bool(app.conf.result_extended)
