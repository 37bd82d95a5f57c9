"""The audited host under test: ``celery -A soak.app worker`` and the keeper run it."""

from __future__ import annotations

from chaos.skills import declare, make_app
from soak import upkeep
from soak.load import SETTINGS

app = make_app(**SETTINGS)
skills = declare(app)
upkeep.begin()
