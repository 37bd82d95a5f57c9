"""A gateway as a real process, and a client that speaks to it over a socket."""

from __future__ import annotations

import http.client
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.prepared import start
from tests.integration.stack import PERSONA, ROOT, Stack
from tests.support import TENANT, wait_until

OTHER_TENANT = "7b8c1d9e-4c56-4f0a-9a53-0d6f2a1e8b47"
TOKEN = "one-tenant-token-0123456789abcdef0123"
OTHER_TOKEN = "other-tenant-token-0123456789abcdef01"
TOKENS = [
    {
        "id": "one",
        "secret": TOKEN,
        "tenants": [TENANT],
        "personas": ["cuo-*"],
        "on_behalf_of": ["*@example.org"],
    },
    {"id": "other", "secret": OTHER_TOKEN, "tenants": [OTHER_TENANT], "personas": ["*"]},
]
KEYS = [{"id": "k1", "secret": "status-link-key-0123456789abcdef012345"}]
_RUNNING = re.compile(r"Uvicorn running on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def fault(self) -> str:
        """The word of a problem, whose shape is checked."""
        assert self.headers["content-type"] == "application/problem+json", self
        document = self.json
        assert document["status"] == self.status
        assert {"type", "title", "status", "detail", "fault"} <= document.keys()
        return str(document["fault"])


class Gateway:
    """One ``uvicorn`` process."""

    def __init__(
        self,
        directory: Path,
        environ: dict[str, str],
        target: str = "tests.integration.gateway_app:asgi",
        *options: str,
    ) -> None:
        self.log = directory / "gateway.log"
        settings = {
            "AUDIT_GATEWAY_TOKENS": json.dumps(TOKENS),
            "AUDIT_GATEWAY_KEYS": json.dumps(KEYS),
        }
        with self.log.open("wb") as log:
            self.process = start(
                *("uvicorn", target, "--port", "0", *options),
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), **settings, **environ},
            )
        self.port = 0

    def __enter__(self) -> Self:
        wait_until(lambda: _RUNNING.search(self.text()) or self.process.poll() is not None, 60)
        match = _RUNNING.search(self.text())
        assert match is not None, self.text()
        self.port = int(match[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.wait(60)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | list[tuple[str, str]] | None = None,
        *,
        token: str | None = TOKEN,
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or ())
        if token is not None:
            pairs.append(("Authorization", f"Bearer {token}"))
        try:
            connection.putrequest(method, path)
            for name, value in pairs:
                connection.putheader(name, value)
            if body is not None and "Transfer-Encoding" not in dict(pairs):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def call(
        self,
        skill_id: str,
        arguments: Any,
        *,
        wait: float | None = None,
        tenant: str | None = TENANT,
        persona: str | None = PERSONA,
        token: str | None = TOKEN,
        **headers: str,
    ) -> Answer:
        """Call a skill; what is no bytes goes as JSON."""
        body = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
        given = {
            "Content-Type": "application/json",
            "X-Audit-Tenant": tenant,
            "X-Audit-Persona": persona,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        query = "" if wait is None else f"?wait={wait:g}"
        named = {name: value for name, value in given.items() if value is not None}
        return self.request("POST", f"/v1/skills/{skill_id}{query}", body, named, token=token)

    def ended(self, answer: Answer, *, token: str = TOKEN) -> Any:
        """What a status link says once the invocation is over."""

        def over() -> Any:
            found = self.request("GET", answer.headers["location"], token=token)
            assert found.status == 200, found
            return found.json if found.json["state"] not in ("pending", "retrying") else None

        return wait_until(over, 30)


def gateway_of(stack: Stack, **environ: str) -> Gateway:
    """A gateway beside a stack's workers."""
    conf = {"audit_redact_logs": True}
    return Gateway(stack.directory, {**stack.environ, "WORKER_CONF": json.dumps(conf), **environ})
