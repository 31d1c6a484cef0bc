"""Lists the locks in the database, and releases locks by force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from commit_coord.locks.base import PAGE
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.locks.keeping import Keeper, Tickets
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.requests import NOBODY, SqlRequests, SqlTicket, entries_of, stored
from commit_coord.locks.sql.store import id_list
from commit_coord.model import LockEntry, LockScope, Resource, entries_by_request
from commit_coord.process import Host
from commit_coord.protocol.lease import LeaseEvent

_LARGEST_PAGE = 32_000
"""Locks of one page of a listing, at most."""


class SqlLockTable:
    """The requests of one catalog, as an administrator sees them.

    Args:
        requests: The requests in the database.
        keeper: Is notified when a lease of this client is released by force.
        tickets: The requests of this client.
        host: Tells which processes of this host have ended.
        page_size: Locks of the first page of a listing.
    """

    def __init__(
        self,
        requests: SqlRequests,
        keeper: Keeper[SqlTicket],
        tickets: Tickets[SqlTicket],
        host: Host,
        page_size: int = PAGE,
    ) -> None:
        self._page_size = page_size
        self._host = host
        self._requests = requests
        self._keeper = keeper
        self._tickets = tickets

    def look(self, resource: Resource | None, scope: LockScope | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.look`."""
        scopes = [self._requests.scope(one) for one in ((scope,) if scope else LockScope)]
        return entries_of(self._requests.ask(lease_sql.LIST, {**self._values(resource), "ids": id_list(scopes)}))

    def pages(self, resource: Resource | None, scope: LockScope | None) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockTable.pages`."""
        for one in (scope,) if scope else LockScope:
            values, limit = {**self._values(resource), "scope": self._requests.scope(one)}, self._page_size
            last: Sequence[Any] | None = ("", "", 0)
            while last is not None:
                after = dict(zip(("after_resource", "after_mode", "after_place"), last, strict=True))
                rows = self._requests.ask(lease_sql.LIST_NEXT, {**values, **after, "limit": limit})
                last = rows[-1][:3] if len(rows) == limit else None
                # The blockers are computed again for each page: the first page should come soon, and the number of
                # later pages should be small.
                limit = min(2 * limit, _LARGEST_PAGE)
                if rows:
                    yield entries_of(rows)

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockTable.listed`."""
        return Resource.parse(stored(resource))

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.free`."""
        present = self.look(None, None)
        named = (resource, self.listed(resource)) if resource is not None else ()
        chosen = {entry.request_id for entry in present if entry.request_id == request_id or entry.resource in named}
        return self.free_listed([entry for entry in present if entry.request_id in chosen])

    def free_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockTable.free_each`."""
        by_request = entries_by_request(self.look(None, None))
        for request_id in request_ids:
            yield self.free_listed(by_request.get(request_id, ()))

    def reap(self, *, dry_run: bool) -> Sequence[LockEntry]:
        """See :meth:`LockTable.reap`."""
        present = [entry for entry in self.look(None, None) if not entry.is_endless]
        dead = [entry for entry in present if self._host.is_dead(entry.owner.process)]
        gone = {entry.request_id for entry in dead}
        expired = [entry for entry in present if entry.expires_in_ms == 0 and entry.request_id not in gone]
        if dry_run:
            return [*dead, *expired]
        with telling_what_was_freed() as freed:
            freed.extend(self.free_listed(dead, forced=False, dead=True))
            freed.extend(self.free_listed(expired, forced=False))
        return freed

    def end(self, scope: LockScope, request_id: str, place: int, *, forced: bool) -> bool:
        """Delete a request of any owner; return whether this call deleted it. A lease of this client becomes LOST."""
        if not self._requests.remove(scope, request_id, place, forced=forced):
            return False
        self._note_end(request_id)
        return True

    def free_listed(
        self, chosen: Iterable[LockEntry], *, forced: bool = True, dead: bool = False
    ) -> Sequence[LockEntry]:
        """Delete the requests of the listed entries *chosen*; return the entries of those that are gone.

        Args:
            chosen: All entries of each request.
            forced: Delete a request in any state; if False, only if it has expired, or its owner is *dead*.
            dead: Whether the processes of their owners have ended.

        Raises:
            PartlyFreed: Some are gone, or may be, and then the database failed.
        """
        by_request: dict[tuple[LockScope, str, int], list[LockEntry]] = {}
        for entry in chosen:
            by_request.setdefault((entry.scope, entry.request_id, int(entry.generation or 0)), []).append(entry)
        with telling_what_was_freed() as freed:
            for (scope, request_id, place), entries in by_request.items():
                ended = entries[0].owner.process if dead else NOBODY
                removal = partial(self._requests.remove, scope, request_id, place, forced=forced, ended=ended)
                # One that has expired and is still there may have been extended since: that is no proof.
                if freed.free(entries, removal, repeat=self._requests.retries.briefly if forced or dead else None):
                    self._note_end(request_id)
        return freed

    def _note_end(self, request_id: str) -> None:
        own = self._tickets.get(request_id)
        if own is not None:
            self._keeper.observe(own, LeaseEvent.DENIED, "released by force")

    def _values(self, resource: Resource | None) -> dict[str, Any]:
        path = "" if resource is None else stored(resource)
        # '0' follows '/' in ASCII, so this is the range of everything below.
        below = {"below_from": f"{path}/", "below_to": f"{path}0"}
        return {"clock": self._requests.store.clock_name, "resource": path, **below}
