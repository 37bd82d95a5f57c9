"""``audit migrate``: makes the tables of a memory in PostgreSQL, or brings them up to date."""

from __future__ import annotations

from uuid import UUID

import click

from audit.cli_options import MEMORY_URL
from audit.memory import migrate_memory
from audit.terminal import echo, settings_of


@click.command()
@click.option("--writer", metavar="ROLE", help="May emit, seal and trim from now on.")
@click.option("--reader", metavar="ROLE", help="May read from now on.")
@click.option(
    "--tenant", type=click.UUID, help="Of rows, those roles see and append this tenant's alone."
)
@click.option(
    "--row-security/--no-row-security",
    default=None,
    help="Rows of a tenant are kept from roles of another, by the database.",
)
@click.option(
    "--partitions",
    type=click.Choice(["monthly"]),
    help="Make the rows' table with a partition for each month.",
)
@click.pass_context
def migrate(
    ctx: click.Context,
    writer: str | None,
    reader: str | None,
    tenant: UUID | None,
    row_security: bool | None,
    partitions: str | None,
) -> None:
    """Make or update the tables of a memory in PostgreSQL.

    Done as a user who may create the schema or owns it, in one transaction; again is safe. The host
    itself then needs no more than what --writer is given, Flower no more than --reader. After a
    restore into another cluster, migrate before anything is emitted. Past months that trimming has
    emptied are removed.

    Exit status: 0 fine, 1 the database did not let it, 2 wrong usage.

    \b
    Example:
      celery -A tasks audit --memory postgresql://owner@db/audit migrate --writer skill_host
    """
    if tenant is not None and writer is None and reader is None:
        raise click.UsageError("--tenant binds a role: add --reader or --writer")
    done = migrate_memory(
        ctx.meta[MEMORY_URL] or settings_of(ctx).memory_url,
        writer=writer,
        reader=reader,
        tenant=None if tenant is None else str(tenant),
        row_security=row_security,
        monthly=partitions is not None,
    )
    echo("\n".join(done) if done else "up to date")
