"""A worker's app that Sentry watches, set up as ``$SENTRY_SET_UP`` says: code, from the docs."""

from __future__ import annotations

import os

exec(os.environ["SENTRY_SET_UP"])  # noqa: S102 - first, as Sentry asks for

from tests.integration.others_skills import declare_others  # noqa: E402
from tests.integration.worker_app import app  # noqa: E402

skills = declare_others(app)
