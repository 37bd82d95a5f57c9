"""A worker's app with Django's tables as result backend, in the SQLite file ``$DJANGO_DATABASE``.

Run as a module it makes the tables.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ["DJANGO_DATABASE"],
            "OPTIONS": {"timeout": 20},
        }
    },
    INSTALLED_APPS=["django_celery_results"],
    USE_TZ=True,
)
django.setup()

from tests.integration.others_skills import declare_others  # noqa: E402
from tests.integration.worker_app import app  # noqa: E402

skills = declare_others(app)

if __name__ == "__main__":
    call_command("migrate", verbosity=0)
