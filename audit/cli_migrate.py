"""``audit migrate``: makes the tables of a memory in PostgreSQL, or brings them up to date."""

from __future__ import annotations

import click

from audit.cli_options import MEMORY_URL
from audit.memory import migrate_memory
from audit.terminal import echo, settings_of


@click.command()
@click.option("--writer", metavar="ROLE", help="May emit, seal and trim from now on.")
@click.option("--reader", metavar="ROLE", help="May read from now on.")
@click.pass_context
def migrate(ctx: click.Context, writer: str | None, reader: str | None) -> None:
    """Make or update the tables of a memory in PostgreSQL.

    Done as a user who may create the schema or owns it, in one transaction; again is safe. The host
    itself then needs no more than what --writer is given, Flower no more than --reader. After a
    restore into another cluster, migrate before anything is emitted.

    Exit status: 0 fine, 1 the database did not let it, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit --memory postgresql://owner@db/audit migrate --writer skill_host
    """
    url = ctx.meta[MEMORY_URL] or settings_of(ctx).memory_url
    done = migrate_memory(url, writer=writer, reader=reader)
    echo("\n".join(done) if done else "up to date")
