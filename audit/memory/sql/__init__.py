"""An audit memory in a SQL database: PostgreSQL or SQLite."""
