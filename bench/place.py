"""Where one variant works: its databases and queue, and the Celery settings that all share.

The processes under test import this module, so it knows nothing but the standard library.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

#: The queue that the workers consume.
LIVE: Final = "live"
#: Nobody consumes this one: its list is renamed to the live one when the clock starts.
HELD: Final = "held"
#: What the camera of events saw, a stream in the memory's database.
SEEN: Final = "seen"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The URLs of one variant, the queue it publishes to by default, and the size of a worker."""

    broker: str
    results: str
    memory: str
    queue: str = HELD
    children: int = 2

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Place:
        return cls(**json.loads(text))

    def celery_settings(self) -> dict[str, Any]:
        """Settings of every variant alike: Celery's own defaults wherever possible."""
        return {
            "broker_url": self.broker,
            "result_backend": self.results,
            "task_default_queue": self.queue,
            "broker_connection_retry_on_startup": True,
        }
