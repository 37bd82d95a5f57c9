"""Skills whose bodies do what tempts other integrations to copy arguments."""

from __future__ import annotations

import logging
import subprocess
from types import SimpleNamespace
from typing import Any

from celery import Celery

from tasks.host import skill

logger = logging.getLogger("app.others")


def declare_others(app: Celery) -> SimpleNamespace:
    """Declare them in ``app``; they come back by name."""

    @skill("others.works", version="1.0.0", app=app)
    def works(text: str) -> dict[str, Any]:
        subprocess.run(["true", text], check=True)
        logger.error("trouble with %s", text, extra={"worked_on": [text]})
        return {"told": text[::-1]}

    @skill("others.fails", version="1.0.0", app=app)
    def fails(text: str) -> None:
        logger.warning("about to fail with %s", text)
        try:
            raise KeyError(text)
        except KeyError as error:
            error.add_note(f"noted {text}")
            raise ValueError(f"cannot use {text}") from error

    @skill("others.logs-its-error", version="1.0.0", app=app)
    def logs_its_error(text: str) -> None:
        try:
            raise KeyError(text)
        except KeyError:
            logger.exception("cannot use %s", text)

    @skill("others.retries", version="1.0.0", app=app, bind=True, max_retries=1)
    def retries(self: Any, text: str) -> str:
        if self.request.retries == 0:
            raise self.retry(countdown=0, exc=ValueError(f"not yet {text}"))
        return text

    @skill("others.gives-up", version="1.0.0", app=app, bind=True, max_retries=1)
    def gives_up(self: Any, text: str) -> None:
        raise self.retry(countdown=0, exc=ValueError(f"never {text}"))

    @skill("others.excluded", version="1.0.0", app=app, body_excluded=True)
    def excluded(text: str, fails: bool = False) -> dict[str, Any]:
        if fails:
            raise ValueError(f"cannot use {text}")
        return {"told": text}

    return SimpleNamespace(**{k: v for k, v in locals().items() if k != "app"})
