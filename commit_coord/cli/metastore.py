"""What a Hive Metastore was found to do, for ``commit-coord config``. Imported only for a catalog on one."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from commit_coord.catalog.metastore.declarations import LOCK_ENABLED
from commit_coord.catalog.metastore.protection import Protection, WriterRelation
from commit_coord.cli.fitting import FittingTable
from commit_coord.cli.output import moment
from commit_coord.cli.views import fact_table, lock_record
from commit_coord.config import Configuration
from commit_coord.errors import MetastoreUnavailable
from commit_coord.hms.client import client_of
from commit_coord.hms.probe import CompareAndSet, Probe, assumed, lock_service

_MEANS = {
    CompareAndSet.HONOURED: "honoured: a commit can't overwrite another one",
    CompareAndSet.IGNORED: "ignored: commits hold the metastore's lock, and check the table before and after",
    CompareAndSet.BROKEN: "broken, so it is not sent: commits hold the metastore's lock, and check before and after",
}


def metastore_record(configuration: Configuration) -> dict[str, Any]:
    """Return what the server in use can do; an error in words where none answers."""
    settings = configuration.settings
    client = client_of(configuration.properties, timeout_ms=settings.hive_client_timeout_ms)
    try:
        found = Probe(client, assumed(settings.hive_compare_and_set)).capabilities()
        locks = lock_service(client)
    except MetastoreUnavailable as error:
        return {"servers": list(client.addresses), "error": str(error)}
    finally:
        client.close()
    return {
        "servers": list(client.addresses),
        "server": found.server,
        "version": found.version,
        "compare_and_set": found.compare_and_set.value,
        "tried": found.tried,
        "locks": locks.there,
        "locks_reason": locks.reason,
        "exclusive_write": locks.exclusive_write,
    }


def metastore_table(record: dict[str, Any]) -> FittingTable | Text:
    """Return a table of *record*."""
    if "error" in record:
        return Text(record["error"], style="red")
    made = fact_table("metastore", title="what the metastore was found to do")
    made.add_row("server", f"{record['server']} (of {len(record['servers'])})")
    made.add_row("version, as it says", record["version"])
    meaning = _MEANS[CompareAndSet(record["compare_and_set"])]
    made.add_row("compare-and-set", meaning if record["tried"] else f"{meaning} (as configured, not tried)")
    made.add_row("locks", "granted" if record["locks"] else Text(f"none: {record['locks_reason']}", style="red"))
    made.add_row("lock modes of Hive 4", "yes" if record["exclusive_write"] else "no")
    return made


_PROTECTED_FROM = {
    WriterRelation.TAKE_TURNS: "safe: they and commit_coord take the metastore's lock in turn",
    WriterRelation.COMPARE: "safe: they compare and set, as commit_coord does",
    WriterRelation.KEPT_OUT: "safe: a guard lock blocks them until they time out",
    WriterRelation.OVERWRITE: "not safe: nothing keeps them from overwriting commits",
}


def protection_record(protection: Protection) -> dict[str, Any]:
    """Return *protection* for JSON."""
    return {
        "table": protection.table,
        "lock_manager": protection.declared,
        "lock_manager_here": protection.lock_impl,
        "compare_and_set": protection.compare_and_set.value,
        "guard": lock_record(protection.guard) if protection.guard is not None else None,
        "lock_enabled": protection.properties.get(LOCK_ENABLED),
        "lock_only_writers": protection.lock_only_writers.value,
        "java_writers": protection.java_writers.value,
    }


def protection_table(protection: Protection) -> FittingTable:
    """Return a table of *protection*."""
    made = fact_table("table", title=f"what protects {protection.table}")
    declared = Text(protection.declared or f"none yet; the first commit declares {protection.lock_impl}")
    if protection.declared not in (None, protection.lock_impl):
        declared.append(f" (this catalog uses {protection.lock_impl}, so it can't commit)", style="red")
    made.add_row("lock manager of its writers", declared)
    made.add_row("compare-and-set", protection.compare_and_set.value)
    guard = protection.guard
    since = f"since {moment(guard.requested_at_ms)}, request {guard.request_id}" if guard is not None else "none"
    made.add_row("guard", since)
    made.add_row(LOCK_ENABLED, protection.properties.get(LOCK_ENABLED, "not set"))
    made.add_row("writers that know only the metastore's lock", _protection(protection.lock_only_writers))
    made.add_row("Java's writers", _protection(protection.java_writers))
    return made


def _protection(relation: WriterRelation) -> Text:
    return Text(_PROTECTED_FROM[relation], style="red" if relation is WriterRelation.OVERWRITE else "")
