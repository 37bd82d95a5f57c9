"""``obs.queue-depth``: how many messages wait in the broker's queues.

Run by beat (see ``beat_schedule`` in ``celeryconfig.py``): a schedule has no caller to inherit
from, so its entry names a persona and a tenant of its own.
"""

from __future__ import annotations

from tasks import app, skill


@skill("obs.queue-depth", version="1.0.0", soft_time_limit=20, time_limit=30)
def queue_depth(queues: list[str]) -> dict[str, int]:
    """Count the messages that wait.

    Args:
        queues: names of queues, e.g. ``["celery"]``.

    Returns:
        Queue name to number of messages; a queue the broker does not know counts 0.
    """
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        return {
            queue: channel.queue_declare(queue=queue, passive=False, durable=True).message_count
            for queue in queues
        }
