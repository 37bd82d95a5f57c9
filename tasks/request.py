"""What happens to an invocation in the worker's main process."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

from audit.invocation import new_request_id
from tasks.caller import REQUEST_ID_HEADER


class SkillRequest(Request):
    """One delivery of one message: the place where the request_id is made.

    It goes to the pool child in the request's headers, so that both processes know it, and always
    over what the message claims: an unknown header of a message is copied into its retries, and a
    retry is an invocation of its own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_dict[REQUEST_ID_HEADER] = self.request_id = new_request_id()
