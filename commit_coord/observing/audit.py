"""The audit log: who released which locks by force, who moved tables to another lock service, when and why.

It also lists the requests that the REST server refused because of who sent them.

To a logger, and to a file of JSON lines where one is configured.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from commit_coord.events import AccessRefused, LocksForced, PhaseChange
from commit_coord.model import Owner, entries_by_request
from commit_coord.redaction import printable

logger = logging.getLogger("commit_coord.audit")

_SHOWN = 3
"""Locks of one request that the logger's line names; the file has all."""


class AuditLog:
    """Records each lock request released by force, each change of a table's phase, and each refused request.

    Each of them is one line.

    Args:
        path: A file that is appended to; "" for none. Processes may share it: a line is written in one piece.
        catalog: The catalog's name.
        lock_manager: Its lock manager.
    """

    def __init__(self, path: str, *, catalog: str, lock_manager: str) -> None:
        self._path = path
        self._common = {"catalog": catalog, "lock_manager": lock_manager}

    def record(self, event: LocksForced) -> None:
        """Write down *event*. The locks are free already, so a file that can't be written is logged and no error."""
        lines = [self._common | record for record in _records(event)]
        for line in lines:
            freed = "freed" if line["outcome"] == "freed" else "may have freed"
            locks = ", ".join(line["locks"][:_SHOWN]) + (", …" if len(line["locks"]) > _SHOWN else "")
            _log(
                line,
                f"{event.how} by {_name(line['by'])} {freed} {locks} of {_name(line['owner'])}, "
                f"request {line['request_id']}: {event.why or 'no reason given'}",
            )
        self._append(lines)

    def changed(self, event: PhaseChange) -> None:
        """Write down *event*; as :meth:`record`, it is no error if that fails."""
        line: dict[str, Any] = self._common | {
            "at": _moment(event.at_ms),
            "how": f"phase {event.stage}",
            "by": _owner(event.by),
            "why": event.why,
            "table": event.table,
            "before": event.before,
            "after": event.after,
            "epoch": event.epoch,
        }
        _log(
            line,
            f"{line['how']} by {_name(line['by'])}: {event.table} from {event.before} to {event.after}, "
            f"epoch {event.epoch}: {event.why or 'no reason given'}",
        )
        self._append([line])

    def refused(self, event: AccessRefused) -> None:
        """Write down *event*; as :meth:`record`, it is no error if that fails."""
        line = self._common | {
            "at": _moment(event.at_ms),
            "how": "access refused" if event.known else "not authenticated",
            "client": event.client,
            "address": event.address,
            "request": event.request,
            "request_id": event.request_id,
            "why": event.why,
        }
        _log(
            line,
            f"{line['how']}: {event.client or 'nobody'} from {event.address}, {event.request!r}, "
            f"request {event.request_id}: {event.why}",
        )
        self._append([line])

    def left_out(self, count: int, at_ms: int) -> None:
        """Write down that *count* requests were refused that have no line of their own."""
        line = self._common | {
            "at": _moment(at_ms),
            "how": "refusals left out",
            "count": count,
            "why": "too many were refused at once to record each of them",
        }
        _log(line, f"{line['how']}: {count} requests: {line['why']}")
        self._append([line])

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        if not self._path:
            return
        text = "".join(printable(json.dumps(line, ensure_ascii=False)) + "\n" for line in lines)
        try:
            # In one piece, behind whatever others have written.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            try:
                os.write(file, text.encode())
                os.fsync(file)
            finally:
                os.close(file)
        except OSError:
            logger.exception("the audit log can't be written: %s", self._path)


def _log(line: dict[str, Any], message: str) -> None:
    """Log one line: who asks chooses names and reasons, and must not write lines of its own, or to a terminal."""
    logger.warning("%s", printable(message), extra={"audit": line})


def _records(event: LocksForced) -> list[dict[str, Any]]:
    return [
        {
            "at": _moment(event.at_ms),
            "how": event.how,
            "by": _owner(event.by),
            "why": event.why,
            "outcome": outcome,
            "request_id": request_id,
            "owner": _owner(entries[0].owner),
            "scope": entries[0].scope.value,
            "state": entries[0].state.value,
            "explicit": entries[0].explicit,
            "guard": entries[0].guard,
            "since": _moment(entries[0].requested_at_ms),
            "locks": [f"{entry.mode.letter} {entry.resource}" for entry in entries],
        }
        for outcome, locks in (("freed", event.freed), ("unknown", event.maybe_freed))
        for request_id, entries in entries_by_request(locks).items()
    ]


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _owner(owner: Owner) -> dict[str, Any]:
    return {
        "user": owner.user,
        "host": owner.host,
        "pid": owner.pid,
        "application": owner.application,
        "statement": owner.statement,
    }


def _name(owner: dict[str, Any]) -> str:
    return f"{owner['user']}@{owner['host']} pid {owner['pid']}"
