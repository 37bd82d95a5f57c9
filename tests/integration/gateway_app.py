"""The ASGI app that a test's gateway serves: the skills of the test's worker."""

from __future__ import annotations

import json
import os

from tasks.gateway import gateway
from tests.integration.worker_app import app

asgi = gateway(app, **json.loads(os.environ.get("GATEWAY", "{}")))
