"""The host under test, as ``celery -A chaos.app worker`` finds it: it ends with its launcher."""

from __future__ import annotations

from chaos import leash
from chaos.skills import declare, make_app

app = make_app()
skills = declare(app)
leash.follow()
