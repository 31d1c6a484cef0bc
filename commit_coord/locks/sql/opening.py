"""Opens the store that a URL names."""

from __future__ import annotations

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from commit_coord.clock import Clock
from commit_coord.errors import ConfigError
from commit_coord.locks.sql.postgres import PostgresStore
from commit_coord.locks.sql.sqlite import SqliteStore
from commit_coord.locks.sql.store import Store, shown

ACCEPTED = "sqlite:///path/to/file.db, postgresql://user@host/database"


def open_store(url: str, clock: Clock, patience_ms: int) -> Store:
    """Return the store at *url*.

    Args:
        url: A SQLAlchemy URL, as a catalog has it.
        clock: The clocks of this host; used for SQLite only.
        patience_ms: How long the network may be silent and a statement may run, on PostgreSQL.

    Raises:
        ConfigError: *url* is no URL of a SQLite file or of PostgreSQL; or the driver of PostgreSQL is not installed.
        LockServiceUnavailable: For SQLite: the boot id or the boot clock of this host can't be read.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter: a port that is no number
        # A user and a password may be before the last '@'.
        visible = url.rpartition("@")[2]
        raise ConfigError("not a database URL", key="lock.uri", value=visible, accepted=ACCEPTED) from None
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteStore(parsed, clock)
        case "postgresql" | "postgres":
            return PostgresStore(parsed, patience_ms)
        case _:
            raise ConfigError("unsupported lock database", key="lock.uri", value=shown(parsed), accepted=ACCEPTED)
