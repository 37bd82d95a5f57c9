"""Celery with django-celery-results in PostgreSQL, extended, and the state STARTED before.

Without Django's project around it, so its connections stay open, which favours it.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings
from django.core.management import call_command

from bench.peers import track_started
from bench.place import Place
from bench.sides import Side


def make(place: Place) -> Side:
    _configure(place)
    side = track_started.make(replace(place, results="django-db"))
    side.app.conf.update(result_extended=True)
    return side


def prepare(place: Place) -> None:
    _configure(place)
    call_command("migrate", verbosity=0)


def _configure(place: Place) -> None:
    url = urlsplit(place.results)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.removeprefix("/"),
        "USER": url.username,
        "HOST": parse_qs(url.query)["host"][0],
    }
    settings.configure(
        DATABASES={"default": database}, INSTALLED_APPS=["django_celery_results"], USE_TZ=True
    )
    django.setup()
