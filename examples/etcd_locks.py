"""A lock manager that keeps its locks in etcd, written against the public contract alone.

Configure it by its class::

    lock-impl = etcd_locks:EtcdLockManager
    lock.uri  = http://localhost:2379

Theory of operation
    One request is one key below its scope, attached to an etcd lease. The revision that created the key is the place of
    the request in every queue: a request waits for each earlier key that locks one of its resources in a conflicting
    mode. One transaction creates the key and reads the others, so requests have one order in all queues.

    A waiter watches the key of the nearest blocker, from the revision at which it saw that key. etcd keeps its history,
    so no deletion is missed. When a lease ends, etcd deletes its key, and the watch reports that, too.

    The id of the lease is made of the names of the client and the request. So a request can be removed by its name,
    whether or not the client learned that it entered, and a put that arrives late finds its lease revoked.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import urllib3

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockError, LockRefused, LockServiceUnavailable
from commit_coord.events import Events
from commit_coord.locks.acquiring import Acquire, Acquirer
from commit_coord.locks.base import Interrupted, LockSettings
from commit_coord.locks.blockers import Blocker, Holder, holder_in
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import HeartbeatLease, Keeper, LeaseService, Retries, Ticket, Tickets
from commit_coord.locks.queue_manager import Parts, QueueLockManager
from commit_coord.locks.threads import THREADS
from commit_coord.model import (
    Generation,
    Guarantees,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    LockState,
    Owner,
    Resource,
)
from commit_coord.process import is_dead
from commit_coord.protocol.modes import compatible

_NOT_FOUND = 5  # the code of gRPC
_TICK_S = 0.5
"""How long a waiter watches before it looks whether the owner of the blocker has died."""


class Refused(LockServiceUnavailable):
    """etcd answered with an error."""

    code = 0


class Etcd:
    """etcd's JSON gateway. Threads may share it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._http = urllib3.PoolManager(maxsize=8, timeout=timeout_s, retries=False)

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one call.

        Raises:
            Interrupted: There was none; the call may have been executed.
            Refused: etcd refused the call.
        """
        try:
            answer = self._http.request("POST", f"{self._url}/v3/{path}", body=json.dumps(body))
        except urllib3.exceptions.HTTPError as error:
            raise Interrupted("etcd did not answer", server=self._url, reason=error) from error
        found: dict[str, Any] = json.loads(answer.data)
        if answer.status >= 500:
            raise Interrupted("etcd is not available", server=self._url, reason=found.get("error"))
        if answer.status != 200:
            refused = Refused("etcd refused a call", server=self._url, reason=found.get("error"))
            refused.code = int(found.get("code", 0))
            raise refused
        return found

    def wait_for_end(self, key: str, revision: int, seconds: float) -> None:
        """Block until *key* is deleted after *revision*, for so many seconds at most."""
        wanted = {"key": _coded(key), "start_revision": str(revision + 1), "filters": ["NOPUT"]}
        with suppress(urllib3.exceptions.HTTPError):  # The waiter looks again in any case.
            answer = self._http.request(
                "POST",
                f"{self._url}/v3/watch",
                body=json.dumps({"create_request": wanted}),
                timeout=urllib3.Timeout(read=seconds),
                preload_content=False,
            )
            try:
                any("events" in json.loads(line)["result"] for line in answer)
            finally:
                answer.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.clear()


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


@dataclass(slots=True, eq=False, kw_only=True)
class EtcdTicket(Ticket):
    """A request in etcd; its place is None while it is not known whether it entered."""

    place: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing(Blocker):
    """One request as etcd has it."""

    key: str
    place: int
    seen_at: int
    """The revision at which it was read."""
    lease_id: str
    explicit: bool
    locks: tuple[tuple[Resource, LockMode], ...]

    def blocks(self, other: Standing) -> bool:
        """Return whether *other* has to wait for this one."""
        wanted = dict(other.locks)
        return self.place < other.place and any(
            resource in wanted and not compatible(wanted[resource], mode) for resource, mode in self.locks
        )


class EtcdRequests(LeaseService[EtcdTicket]):
    """The requests of one catalog in etcd, and the leases that keep them."""

    def __init__(self, etcd: Etcd, space: str, client: str, settings: LockSettings) -> None:
        self.etcd, self._space, self._client, self._settings = etcd, space, client, settings

    @property
    def lease_seconds(self) -> float:
        """See :attr:`LeaseService.lease_seconds`."""
        return self._settings.lease_ms / 1000

    @property
    def interval(self) -> float:
        """See :attr:`LeaseService.interval`."""
        return self._settings.heartbeat_interval_ms / 2000

    def key(self, scope: LockScope, request_id: str = "") -> str:
        """Return the key of a request; without an id, what the keys of *scope* begin with."""
        return f"commit-coord/{self._space}/{scope.value}/{request_id}"

    def _lease_id(self, request: LockRequest) -> str:
        digest = hashlib.sha256(f"{self._client} {request.request_id}".encode()).digest()
        return str(int.from_bytes(digest[:8], "big") >> 1 or 1)

    def enter(self, request: LockRequest, now_ms: int) -> list[Standing]:
        """Create the key of *request*, and return all requests of its scope.

        Raises:
            LockRefused: Another request has that id.
        """
        lease_id, key = self._lease_id(request), self.key(request.scope, request.request_id)
        with suppress(Refused):  # It was granted before, by a call whose answer was lost.
            self.etcd.call("lease/grant", {"ID": lease_id, "TTL": str(math.ceil(self.lease_seconds))})
        value = {
            "client": self._client,
            "owner": asdict(request.owner),
            "since_ms": now_ms,
            "explicit": request.explicit,
            "locks": [[str(resource), mode.letter] for resource, mode in request.locks],
        }
        is_new = {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": _coded(key), "value": _coded(json.dumps(value)), "lease": lease_id}}
        look = {"request_range": self._range(request.scope)}
        answer = self.etcd.call("kv/txn", {"compare": [is_new], "success": [put, look], "failure": [look]})
        found = list(_standing(answer["responses"][-1]["response_range"], int(answer["header"]["revision"])))
        if not answer.get("succeeded") and not any(one.key == key and one.lease_id == lease_id for one in found):
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        return found

    def look(self, scope: LockScope) -> list[Standing]:
        """Return all requests of *scope*, in their order."""
        answer = self.etcd.call("kv/range", self._range(scope))
        return sorted(_standing(answer, int(answer["header"]["revision"])), key=lambda one: one.place)

    def _range(self, scope: LockScope) -> dict[str, str]:
        prefix = self.key(scope)
        return {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + chr(ord("/") + 1))}

    def stay(self, request: LockRequest, place: int) -> None:
        """Take the lease from the key of an explicit lock, which outlives its client."""
        key = _coded(self.key(request.scope, request.request_id))
        put = {"request_put": {"key": key, "ignore_value": True, "lease": "0"}}
        self.etcd.call("kv/txn", {"compare": [_is_at(key, place)], "success": [put]})

    def delete(self, key: str, place: int) -> bool:
        """Delete the request that has *key* at *place*; return whether it was there."""
        gone = {"request_delete_range": {"key": _coded(key)}}
        return bool(
            self.etcd.call("kv/txn", {"compare": [_is_at(_coded(key), place)], "success": [gone]}).get("succeeded")
        )

    def remove(self, ticket: EtcdTicket) -> None:
        """See :meth:`LeaseService.remove`."""
        request = ticket.request
        try:
            self.etcd.call("lease/revoke", {"ID": self._lease_id(request)})
        except Refused as error:
            if error.code != _NOT_FOUND:
                raise
        if request.explicit and ticket.place is not None:
            self.delete(self.key(request.scope, request.request_id), ticket.place)

    def renewed(self, tickets: Sequence[EtcdTicket], *, thorough: bool) -> Collection[EtcdTicket]:
        """See :meth:`LeaseService.renewed`."""
        for ticket in filter(self.needs_heartbeat, tickets):
            self.etcd.call("lease/keepalive", {"ID": self._lease_id(ticket.request)})
        scopes = {ticket.request.scope for ticket in tickets}
        there = {(one.key, one.place) for scope in scopes for one in self.look(scope)}
        return [t for t in tickets if (self.key(t.request.scope, t.request.request_id), t.place) in there]

    def needs_heartbeat(self, ticket: EtcdTicket) -> bool:
        """See :meth:`LeaseService.needs_heartbeat`: an explicit lock has a lease as long as it waits."""
        return not ticket.request.explicit or ticket.lease is None

    def expires_in_ms(self, one: Standing) -> int | None:
        """Return when etcd deletes *one* unless its lease is renewed."""
        if one.lease_id == "0":
            return None
        left = int(self.etcd.call("lease/timetolive", {"ID": one.lease_id}).get("TTL", 0))
        return max(1, min(left * 1000, self._settings.lease_ms))

    def disconnect(self) -> None:
        """See :meth:`LeaseService.disconnect`."""
        self.etcd.close()


def _is_at(coded_key: str, place: int) -> dict[str, str]:
    return {"key": coded_key, "target": "CREATE", "result": "EQUAL", "create_revision": str(place)}


def _standing(found: dict[str, Any], seen_at: int) -> Iterator[Standing]:
    for one in found.get("kvs", ()):
        key, value = b64decode(one["key"]).decode(), json.loads(b64decode(one["value"]))
        yield Standing(
            request_id=key.rpartition("/")[2],
            owner=Owner(**value["owner"]),
            requested_at_ms=value["since_ms"],
            key=key,
            place=int(one["create_revision"]),
            seen_at=seen_at,
            lease_id=one.get("lease", "0"),
            explicit=value["explicit"],
            locks=tuple((Resource.parse(text), _MODES[letter]) for text, letter in value["locks"]),
        )


_MODES = {mode.letter: mode for mode in LockMode}


class EtcdQueue:
    """The queues in etcd, as one client sees them."""

    def __init__(
        self, requests: EtcdRequests, tickets: Tickets[EtcdTicket], keeper: Keeper[EtcdTicket], retries: Retries,
        table: EtcdLockTable, clock: Clock,
    ) -> None:  # fmt: skip
        self._requests, self._tickets, self._keeper = requests, tickets, keeper
        self._retries, self._table, self._clock = retries, table, clock

    def knows(self, request_id: str) -> bool:
        """See :meth:`Queue.knows`."""
        return request_id in self._tickets

    def enter(self, acquire: Acquire) -> Blocker | None:
        """See :meth:`Queue.enter`."""
        request, sent = acquire.request, self._clock.now()
        found = self._retries.until(acquire.deadline, lambda: self._requests.enter(request, self._clock.wall_ms()))
        own = next(one for one in found if one.request_id == request.request_id)
        self._tickets[request.request_id] = EtcdTicket(request=request, place=own.place, last_confirmed_at=sent)
        self._keeper.heartbeat.ensure_running()
        return _blocker(own, found)

    def wait(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """See :meth:`Queue.wait`."""
        assert isinstance(blocker, Standing)
        if not blocker.explicit and is_dead(blocker.owner.process):
            self._retries.until(until, lambda: self._requests.delete(blocker.key, blocker.place))
        elif not acquire.is_closed:
            seconds = max(0.01, min(until - self._clock.now(), _TICK_S))
            self._requests.etcd.wait_for_end(blocker.key, blocker.seen_at, seconds)
        request, ticket = acquire.request, self._tickets[acquire.request.request_id]
        found = self._retries.until(until, lambda: self._requests.look(request.scope))
        own = next((one for one in found if one.place == ticket.place), None)
        if own is not None:
            return _blocker(own, found)
        if self._clock.now() - ticket.last_confirmed_at < self._requests.lease_seconds:
            raise LockRefused("the request was taken out of the queue by force", locks=request)
        # 1. This process was stopped for longer than a lease.   2. etcd deleted the key.   It enters again, at the end.
        self._tickets.pop(request.request_id)
        self._requests.remove(ticket)
        return self.enter(acquire)

    def grant(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`Queue.grant`."""
        ticket = self._tickets[acquire.request.request_id]
        assert ticket.place is not None
        if acquire.request.explicit:
            self._requests.stay(acquire.request, ticket.place)
        lease = HeartbeatLease(self._keeper, ticket, Generation(ticket.place))
        ticket.lease = lease
        return lease

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        """See :meth:`Queue.leave`."""
        if not any(ticket.request is request for ticket in list(self._tickets.unreleased)):
            known = self._tickets.get(request.request_id)
            self._keeper.give_back(known or EtcdTicket(request=request, place=None))

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`Queue.retract`: nobody takes offers here."""
        return True

    def holder(self, request: LockRequest, blocker: Blocker) -> Holder:
        """See :meth:`Queue.holder`."""
        entries: Sequence[LockEntry] = ()
        with suppress(LockError):
            entries = self._table.look(None, request.scope)
        return holder_in(entries, request, blocker)


def _blocker(own: Standing, found: Sequence[Standing]) -> Standing | None:
    return max((one for one in found if one.blocks(own)), key=lambda one: one.place, default=None)


class EtcdLockTable:
    """Who holds and waits for what in etcd, and how that is ended by force."""

    def __init__(self, requests: EtcdRequests, retries: Retries) -> None:
        self._requests, self._retries = requests, retries

    def look(self, resource: Resource | None, scope: LockScope | None) -> list[LockEntry]:
        """See :meth:`LockTable.look`."""
        entries = [entry for _, listed in self._all() for entry in listed if scope in (None, entry.scope)]
        depth = len(resource.path) if resource else 0
        return [one for one in entries if resource is None or one.resource.path[:depth] == resource.path]

    def _all(self) -> Iterator[tuple[Standing, list[LockEntry]]]:
        for scope in LockScope:
            found = self._retries.briefly(lambda scope=scope: self._requests.look(scope))  # type: ignore[misc]
            for one in found:
                yield one, list(self._entries(scope, one, _blocker(one, found)))

    def _entries(self, scope: LockScope, one: Standing, blocker: Standing | None) -> Iterator[LockEntry]:
        expires_in_ms = self._requests.expires_in_ms(one)
        for resource, mode in one.locks:
            yield LockEntry(
                resource=resource,
                mode=mode,
                scope=scope,
                state=LockState.WAITING if blocker else LockState.ACQUIRED,
                owner=one.owner,
                request_id=one.request_id,
                generation=Generation(one.place),
                requested_at_ms=one.requested_at_ms,
                expires_in_ms=expires_in_ms,
                explicit=one.explicit,
                blocked_by=blocker.request_id if blocker else None,
            )

    def pages(self, resource: Resource | None, scope: LockScope | None) -> Iterator[Sequence[LockEntry]] | None:
        """See :meth:`LockTable.pages`."""
        return None

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockTable.listed`."""
        return resource

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.free`."""
        return [
            entry
            for one, entries in self._all()
            if one.request_id == request_id or any(locked == resource for locked, _ in one.locks)
            if self._requests.delete(one.key, one.place)
            for entry in entries
        ]

    def reap(self, *, dry_run: bool) -> Sequence[LockEntry]:
        """See :meth:`LockTable.reap`: etcd itself ends leases; what is left are owners of this host that have died."""
        return [
            entry
            for one, entries in self._all()
            if not one.explicit and is_dead(one.owner.process)
            if dry_run or self._requests.delete(one.key, one.place)
            for entry in entries
        ]


class EtcdLockManager(QueueLockManager[EtcdQueue]):
    """Locks in etcd; ``lock.uri`` is the address of its JSON gateway."""

    name = "etcd"

    def __init__(
        self,
        uri: str,
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        settings, events = settings or LockSettings(), events or Events()

        def made() -> Parts[EtcdQueue]:
            held, emitter = Held(THREADS), LockEventEmitter(events, clock)
            tickets = Tickets[EtcdTicket](uuid.uuid4().hex)
            retries = Retries(clock, lambda: settings.lease_ms / 1000)
            requests = EtcdRequests(Etcd(uri, settings.lease_ms / 3000), space, tickets.client, settings)
            keeper = Keeper(requests, tickets, retries, THREADS.heartbeat, emitter, events, settings, clock)
            table = EtcdLockTable(requests, retries)
            queue = EtcdQueue(requests, tickets, keeper, retries, table, clock)
            acquirer = Acquirer(queue, None, held, emitter, settings, clock)
            return Parts(queue=queue, acquirer=acquirer, held=held, keeping=keeper, table=table)

        super().__init__(_GUARANTEES, settings, made)


_GUARANTEES = Guarantees(
    mutual_exclusion=True,
    hierarchy=True,
    fifo=True,
    reach="network",
    expiry=True,
    survives_restart=True,
    explicit_locks=True,
    journal=False,
    clock="server",
)
