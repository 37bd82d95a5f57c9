"""How a worker takes messages: one that nothing could be made of is thrown away, and it goes on.

Whoever writes to the broker may write anything. What Celery or kombu stumble over before a request
is handed on would end the worker's main process, and be restored to the queue, where the next
worker meets it. Here it is rejected for good, with a record of no more than the error's class. Lost
connections, shutdowns, and whatever befalls a request that was handed on, go their usual way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from celery import signals
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker.consumer import Consumer

from audit.errors import SkillDefinitionError
from tasks.channel import keep_client
from tasks.headers import unusable_header
from tasks.inlet import STUMBLES, take_anything
from tasks.reception import give_requests
from tasks.runtime import runtime_of
from tasks.standin import stand_in

logger: Final = logging.getLogger("audit")


class SteadyConsumer(Consumer):
    """Celery's consumer, which no message ends."""

    def __init__(self, on_task_request: Any, *args: Any, **kwargs: Any) -> None:
        def hand_on(request: Any) -> Any:
            request.message.handed_on = True
            return on_task_request(request)

        super().__init__(hand_on, *args, **kwargs)

    def update_strategies(self) -> None:
        """Called whenever a connection is made, and on a reload: tasks may have been declared."""
        keys = runtime_of(self.app).settings.context_keys
        try:
            give_requests(self.app, proven=bool(keys))
        except SkillDefinitionError as error:
            logger.critical("this worker ends: %s", error, extra={"severity": "sev-1"})
            raise WorkerShutdown(EX_FAILURE) from error
        super().update_strategies()

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Called for each connection, before it takes a message."""
        take_anything(self.task_consumer.channel)
        keep_client(self.task_consumer.channel)
        receive = super().create_task_handler(*args, **kwargs)

        def on_task_received(message: Any) -> Any:
            try:
                unusable = _unusable(message)
                if unusable is None:
                    return receive(message)
                return self.on_invalid_task(None, message, unusable)
            except STUMBLES as error:
                if getattr(message, "handed_on", False) or self._is_lost(error):
                    raise
                return self._throw_away(message, error)

        return on_task_received

    def _is_lost(self, error: Exception) -> bool:
        """Whether a transport says that its connection is gone.

        Redis' counts every KeyError among these: a message without an id would be restored and met
        again, connection after connection. One of Python's own kind tells of the message.
        """
        of_transport = type(error).__module__ != "builtins"
        return of_transport and isinstance(error, self.connection_errors + self.channel_errors)

    def _throw_away(self, message: Any, error: Exception) -> None:
        bare = stand_in(error, (), type_only=True)
        logger.error(
            "received and deleted a message that no task could be made of (%s), for task %s, with"
            " id %s; its content is withheld",
            type(error).__name__,
            *_named(message, "task", "id"),
            exc_info=(type(bare), bare, error.__traceback__),
        )
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors)
        signals.task_rejected.send(sender=self, message=message, exc=error)


@cache
def steady(consumer: Any) -> Any:
    """A class of consumers like that one, which no message ends."""
    if not isinstance(consumer, type) or issubclass(consumer, SteadyConsumer):
        return consumer  # a factory of the application's makes what it likes
    if issubclass(SteadyConsumer, consumer):
        return SteadyConsumer
    return type(f"Steady{consumer.__name__}", (SteadyConsumer, consumer), {})


def _named(message: Any, *names: str) -> list[str]:
    """What a message calls itself, where it does in so many words."""
    headers = message.headers if isinstance(message.headers, Mapping) else {}
    found = (headers.get(name) for name in names)
    return [text if isinstance(text, str) else "unknown" for text in found]


def _unusable(message: Any) -> InvalidTaskError | None:
    """Celery uses some headers only once a request is on its way, and without a look."""
    headers = message.headers
    if isinstance(headers, Mapping) and "task" in headers:
        name = unusable_header({"id": "", **headers})
        if name is not None:
            return InvalidTaskError(f"header {name!r} has no value that Celery could use")
    return None
