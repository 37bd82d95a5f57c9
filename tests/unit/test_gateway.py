"""tasks/gateway.py: what it needs to start, and that nobody else needs what it needs."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from audit.errors import SettingsError
from tasks import SkillHost
from tasks.gateway import gateway
from tasks.gateway_middleware import WithoutQuery, keep_queries_out_of_the_log
from tests.integration.gateway import KEYS, TOKENS
from tests.integration.stack import ROOT

SETTINGS = {"audit_gateway_tokens": TOKENS, "audit_gateway_keys": KEYS}


def host(**conf: Any) -> SkillHost:
    app = SkillHost("gateway")
    app.conf.update({"result_backend": "redis://127.0.0.1:1/0", **SETTINGS, **conf})
    return app


def test_a_whole_configuration_starts() -> None:
    """Tokens and keys may stand in the configuration as lists."""
    assert gateway(host()).routes


@pytest.mark.parametrize(
    ("conf", "complaint"),
    [
        ({"audit_gateway_tokens": None}, "audit_gateway_tokens"),
        ({"audit_gateway_tokens": []}, "audit_gateway_tokens"),
        ({"audit_gateway_keys": None}, "audit_gateway_keys"),
        ({"task_always_eager": True}, "task_always_eager"),
        ({"result_backend": "rpc://"}, "result_backend"),
    ],
)
def test_what_keeps_it_from_starting(conf: dict[str, Any], complaint: str) -> None:
    """Nothing is open by default; the error names the setting."""
    with pytest.raises(SettingsError, match=complaint):
        gateway(host(**conf))


def test_the_host_needs_none_of_it() -> None:
    """Importing ``tasks`` loads neither starlette nor uvicorn."""
    code = "import sys, tasks, tasks.skills; print('starlette' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_without_the_extra_it_says_what_to_install() -> None:
    """An import error that names the extra."""
    code = "import sys; sys.modules['starlette'] = None; import tasks.gateway"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ImportError: the gateway needs its extra: pip install" in done.stderr


def test_the_access_log_forgets_query_strings() -> None:
    """Once for the logger, however often a gateway is made."""
    keep_queries_out_of_the_log()
    keep_queries_out_of_the_log()
    filters = [
        f for f in logging.getLogger("uvicorn.access").filters if isinstance(f, WithoutQuery)
    ]
    assert len(filters) == 1
    record = logging.makeLogRecord({"args": ("1.2.3.4", "GET", "/a?b=s3cret", "1.1", 200)})
    filters[0].filter(record)
    assert record.args == ("1.2.3.4", "GET", "/a", "1.1", 200)
