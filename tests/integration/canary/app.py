"""The app that the canary's worker, Flower and caller run, and what is switched off in it.

``CANARY_OFF`` names one protection that is patched away in this process. ``CANARY_RECORDS`` is a
file for every log record with all its attributes, as an error tracker would send them, and
``CANARY_SIGNALS`` one for what receivers of Celery's signals get to see.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

from celery import signals

from tasks import SkillHost
from tests.integration.canary.protections import switch_off
from tests.integration.canary.skills import declare


class Records(logging.FileHandler):
    """Writes what a formatter makes of a record, and then everything that is in it."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{super().format(record)}\n{record.__dict__!r}"


def keep_records(logger: logging.Logger | None = None, **_: Any) -> None:
    """Let a logger write its records to ``CANARY_RECORDS``."""
    handler = Records(os.environ["CANARY_RECORDS"])
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    (logger or logging.getLogger()).addHandler(handler)


def keep_told(einfo: Any = None, reason: Any = None, **_: Any) -> None:
    """What receivers are told of a failure; error and result themselves are the body's own."""
    texts = (str(einfo), str(einfo.traceback), repr(einfo.exception), str(reason))
    with Path(os.environ["CANARY_SIGNALS"]).open("a") as file:
        file.write("\n".join(texts) + "\n")


def kill(sender: Any = None, **_: Any) -> None:
    """Kill this process when a success is stored, and nobody has been told yet."""
    if sender.name == "canary.killed-after-success":
        os.kill(os.getpid(), signal.SIGKILL)


switch_off(os.environ.get("CANARY_OFF", ""))
signals.after_setup_logger.connect(keep_records, weak=False)
signals.task_failure.connect(keep_told, weak=False)
signals.task_retry.connect(keep_told, weak=False)
signals.task_success.connect(kill, weak=False)
signals.after_setup_task_logger.connect(keep_records, weak=False)

app = SkillHost("canary", set_as_current=True)
app.conf.update(
    accept_content=["json"],
    task_default_queue="skills",
    task_send_sent_event=True,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
)
skills = declare(app)
