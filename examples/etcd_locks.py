"""A lock manager that keeps its locks in etcd, written against the public contract alone (docs/write-a-lock-manager.md).

Theory of operation
    One request is one key below its scope, attached to an etcd lease. The revision that created the key is the place of
    the request in every queue: a request waits for each earlier key that locks one of its resources in a conflicting
    mode. One transaction creates the key and reads the others, so requests have one order in all queues.

    A waiter watches the key of the nearest blocker, from the revision at which it saw that key. etcd keeps its history,
    so no deletion is missed. When a lease ends, etcd deletes its key, and the watch reports that, too.

    The id of a lease is made of the names of the client and of the request. So a request can be removed by its name,
    whether or not the client learned that it entered, and a put that arrives late finds its lease revoked.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import urllib3

from commit_coord.errors import LockError, LockRefused, LockServiceUnavailable
from commit_coord.locks import public as locks
from commit_coord.locks.public import Acquire, LockEntry, LockRequest, LockScope, Resource

_NOT_FOUND = 5
"""gRPC's code of what etcd does not know."""

_TICK_S = 0.5
"""How long a waiter watches before it looks whether the owner of the blocker has died."""


class Refused(LockServiceUnavailable):
    """etcd answered with an error; *code* is gRPC's."""

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
            raise locks.Interrupted("etcd did not answer", server=self._url, reason=error) from error
        found: dict[str, Any] = json.loads(answer.data)
        if answer.status >= 500:
            raise locks.Interrupted("etcd is not available", server=self._url, reason=found.get("error"))
        if answer.status != 200:
            refused = Refused("etcd refused a call", server=self._url, reason=found.get("error"))
            refused.code = int(found.get("code", 0))
            raise refused
        return found

    def wait_for_end(self, key: str, revision: int, seconds: float) -> None:
        """Block until *key* is deleted after *revision*, for so many seconds at most."""
        wanted = {"key": _coded(key), "start_revision": str(revision + 1), "filters": ["NOPUT"]}
        body, timeout = json.dumps({"create_request": wanted}), urllib3.Timeout(read=seconds)
        with suppress(urllib3.exceptions.HTTPError):  # The waiter looks again in any case.
            answer = self._http.request(
                "POST", f"{self._url}/v3/watch", body=body, timeout=timeout, preload_content=False
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
class EtcdTicket(locks.Ticket):
    """A request in etcd; its place is None while the client does not know whether it entered."""

    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InEtcd(locks.Blocker):
    """One request as etcd has it, read at the revision *seen_at*; without a lease the id of the lease is "0"."""

    request: LockRequest
    key: str
    place: int
    seen_at: int
    lease_id: str

    def blocks(self, other: InEtcd) -> bool:
        """Return whether *other* has to wait for this one."""
        wanted = dict(other.request.locks)
        return self.place < other.place and any(
            resource in wanted and not locks.compatible(wanted[resource], mode) for resource, mode in self.request.locks
        )


class EtcdLeases(locks.LeaseService[EtcdTicket]):
    """The requests of one catalog in etcd, and the leases that keep them."""

    def __init__(self, etcd: Etcd, space: str, client: str, settings: locks.LockSettings) -> None:
        self.etcd, self._space, self._client, self._settings = etcd, space, client, settings

    @property
    def lease_seconds(self) -> float:
        return self._settings.lease_ms / 1000

    @property
    def interval(self) -> float:
        return self._settings.heartbeat_interval_ms / 2000

    def _key(self, scope: LockScope, request_id: str = "") -> str:
        return f"commit-coord/{self._space}/{scope.value}/{request_id}"

    def _lease_id(self, request: LockRequest) -> str:
        digest = hashlib.sha256(f"{self._client} {request.request_id}".encode()).digest()
        return str((int.from_bytes(digest[:8], "big") >> 1) or 1)

    def _range(self, scope: LockScope) -> dict[str, str]:
        prefix = self._key(scope)
        return {"key": _coded(prefix), "range_end": _coded(prefix[:-1] + chr(ord("/") + 1))}

    def enter(self, request: LockRequest, now_ms: int) -> list[InEtcd]:
        """Create the key of *request* and return all requests of its scope.

        Raises:
            LockRefused: Another request has that id.
        """
        lease_id, key = self._lease_id(request), self._key(request.scope, request.request_id)
        with suppress(Refused):  # It was granted before, by a call whose answer was lost.
            self.etcd.call("lease/grant", {"ID": lease_id, "TTL": str(math.ceil(self.lease_seconds))})
        parts = [[str(resource), mode.name] for resource, mode in request.locks]
        value = {"owner": asdict(request.owner), "locks": parts, "explicit": request.explicit, "since_ms": now_ms}
        is_new = {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": _coded(key), "value": _coded(json.dumps(value)), "lease": lease_id}}
        look = {"request_range": self._range(request.scope)}
        answer = self.etcd.call("kv/txn", {"compare": [is_new], "success": [put, look], "failure": [look]})
        found = list(_requests_in(answer["responses"][-1]["response_range"], int(answer["header"]["revision"])))
        if not any(one.key == key and one.lease_id == lease_id for one in found):
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        return found

    def look(self, scope: LockScope) -> list[InEtcd]:
        """Return all requests of *scope*, in their order."""
        answer = self.etcd.call("kv/range", self._range(scope))
        return sorted(_requests_in(answer, int(answer["header"]["revision"])), key=lambda one: one.place)

    def if_at(self, key: str, place: int, change: dict[str, Any]) -> bool:
        """Do *change* if the request with *key* is there at *place*; return whether it is."""
        is_there = {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(place)}
        return bool(self.etcd.call("kv/txn", {"compare": [is_there], "success": [change]}).get("succeeded"))

    def delete(self, key: str, place: int) -> bool:
        """Delete the request that has *key* at *place*; return whether it was there."""
        return self.if_at(key, place, {"request_delete_range": {"key": _coded(key)}})

    def detach(self, request: LockRequest, place: int) -> None:
        """Take the lease from the key of an explicit lock, which outlives its client."""
        key = self._key(request.scope, request.request_id)
        self.if_at(key, place, {"request_put": {"key": _coded(key), "ignore_value": True, "lease": "0"}})

    def remove(self, ticket: EtcdTicket) -> None:
        request = ticket.request
        try:
            self.etcd.call("lease/revoke", {"ID": self._lease_id(request)})  # which deletes the key, too
        except Refused as error:
            if error.code != _NOT_FOUND:
                raise
        if request.explicit and ticket.place is not None:
            self.delete(self._key(request.scope, request.request_id), ticket.place)

    def renewed(self, tickets: Sequence[EtcdTicket], *, thorough: bool) -> Collection[EtcdTicket]:
        for ticket in filter(self.needs_heartbeat, tickets):
            self.etcd.call("lease/keepalive", {"ID": self._lease_id(ticket.request)})
        there = {one.place for scope in {ticket.request.scope for ticket in tickets} for one in self.look(scope)}
        return [ticket for ticket in tickets if ticket.place in there]

    def needs_heartbeat(self, ticket: EtcdTicket) -> bool:
        return not ticket.request.explicit or ticket.lease is None  # an explicit lock has a lease while it waits

    def expires_in_ms(self, one: InEtcd) -> int | None:
        """Return when etcd deletes *one* unless its lease is renewed; None if it has none."""
        if one.lease_id == "0":
            return None
        left_s = int(self.etcd.call("lease/timetolive", {"ID": one.lease_id}).get("TTL", 0))
        return max(1, min(left_s * 1000, self._settings.lease_ms))

    def disconnect(self) -> None:
        self.etcd.close()


def _requests_in(found: dict[str, Any], seen_at: int) -> Iterator[InEtcd]:
    for one in found.get("kvs", ()):
        key, value = b64decode(one["key"]).decode(), json.loads(b64decode(one["value"]))
        _, scope, request_id = key.rsplit("/", 2)
        owner, explicit = locks.Owner(**value["owner"]), value["explicit"]
        parts = tuple((Resource.parse(text), locks.LockMode[name]) for text, name in value["locks"])
        yield InEtcd(
            request=LockRequest(LockScope(scope), parts, owner, request_id, explicit),
            request_id=request_id,
            owner=owner,
            requested_at_ms=value["since_ms"],
            key=key,
            place=int(one["create_revision"]),
            seen_at=seen_at,
            lease_id=one.get("lease", "0"),
        )


def _nearest(own: InEtcd, found: Sequence[InEtcd]) -> InEtcd | None:
    """Return the last request before *own* that it has to wait for."""
    return max((one for one in found if one.blocks(own)), key=lambda one: one.place, default=None)


class EtcdLockTable(locks.LockTable):
    """All requests in etcd, and how they are ended by force."""

    def __init__(self, leases: EtcdLeases, retries: locks.Retries, host: locks.Host) -> None:
        self._leases, self._retries, self._host = leases, retries, host

    def look(self, resource: Resource | None, scope: LockScope | None) -> list[LockEntry]:
        depth = len(resource.path) if resource else 0
        entries = [entry for one, listed in self._all() for entry in listed if scope in (None, one.request.scope)]
        return [entry for entry in entries if not resource or entry.resource.path[:depth] == resource.path]

    def _all(self) -> Iterator[tuple[InEtcd, list[LockEntry]]]:
        for found in [self._retries.briefly(lambda one=scope: self._leases.look(one)) for scope in LockScope]:  # type: ignore[misc]
            for one in found:
                blocker = _nearest(one, found)
                yield (
                    one,
                    locks.entries_of(
                        one.request,
                        generation=locks.Generation(one.place),
                        requested_at_ms=one.requested_at_ms,
                        blocked_by=blocker.request_id if blocker else None,
                        expires_in_ms=self._leases.expires_in_ms(one),
                    ),
                )

    def free(self, request_id: str | None, resource: Resource | None) -> list[LockEntry]:
        chosen = [
            (one, entries)
            for one, entries in self._all()
            if one.request_id == request_id or any(locked == resource for locked, _ in one.request.locks)
        ]
        return [entry for one, entries in chosen if self._leases.delete(one.key, one.place) for entry in entries]

    def reap(self, *, dry_run: bool) -> list[LockEntry]:
        # etcd itself ends leases; what may be left are requests of processes of this host that have died.
        dead = [(one, listed) for one, listed in self._all() if self.is_dead(one)]
        return [entry for one, listed in dead if dry_run or self._leases.delete(one.key, one.place) for entry in listed]

    def is_dead(self, one: InEtcd) -> bool:
        """Return whether the owner of *one* has certainly ended, and its lock ends with it."""
        return not one.request.explicit and self._host.is_dead(one.owner.process)


class EtcdQueue(locks.Queue):
    """The queues in etcd, as one client sees them."""

    def __init__(
        self,
        leases: EtcdLeases,
        tickets: locks.Tickets[EtcdTicket],
        keeper: locks.Keeper[EtcdTicket],
        retries: locks.Retries,
        table: EtcdLockTable,
        clock: locks.Clock,
    ) -> None:
        self._leases, self._tickets, self._keeper = leases, tickets, keeper
        self._retries, self._table, self._clock = retries, table, clock

    def knows(self, request_id: str) -> bool:
        return request_id in self._tickets

    def enter(self, acquire: Acquire) -> InEtcd | None:
        request, sent = acquire.request, self._clock.now()
        found = self._retries.until(acquire.deadline, lambda: self._leases.enter(request, self._clock.wall_ms()))
        own = next(one for one in found if one.request_id == request.request_id)
        self._tickets[request.request_id] = EtcdTicket(request=request, place=own.place, last_confirmed_at=sent)
        self._keeper.heartbeat.ensure_running()
        return _nearest(own, found)

    def wait(self, acquire: Acquire, blocker: locks.Blocker, until: float) -> InEtcd | None:
        assert isinstance(blocker, InEtcd)
        request, ticket = acquire.request, self._tickets[acquire.request.request_id]
        if self._table.is_dead(blocker):
            self._retries.until(until, lambda: self._leases.delete(blocker.key, blocker.place))
        elif not acquire.is_closed:
            seconds = max(0.01, min(until - self._clock.now(), _TICK_S))
            self._leases.etcd.wait_for_end(blocker.key, blocker.seen_at, seconds)
        found = self._retries.until(until, lambda: self._leases.look(request.scope))
        if own := next((one for one in found if one.place == ticket.place), None):
            return _nearest(own, found)
        if self._clock.now() - ticket.last_confirmed_at < self._leases.lease_seconds:
            raise LockRefused("the request was taken out of the queue by force", locks=request)
        # 1. This process stalls for longer than a lease.   2. etcd deletes the key.   So it enters again, at the end.
        del self._tickets[request.request_id]
        self._leases.remove(ticket)
        return self.enter(acquire)

    def grant(self, acquire: Acquire) -> locks.HandoverLease:
        ticket = self._tickets[acquire.request.request_id]
        assert ticket.place is not None
        if acquire.request.explicit:
            self._leases.detach(acquire.request, ticket.place)
        ticket.lease = lease = locks.HeartbeatLease(self._keeper, ticket, locks.Generation(ticket.place))
        return lease

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        if not any(ticket.request is request for ticket in list(self._tickets.unreleased)):
            self._keeper.give_back(self._tickets.get(request.request_id) or EtcdTicket(request=request))

    def retract(self, request: LockRequest) -> bool:
        return True  # nobody takes offers here

    def holder(self, request: LockRequest, blocker: locks.Blocker) -> locks.Holder:
        entries: list[LockEntry] = []
        with suppress(LockError):  # A courtesy: the blocker alone is named, too.
            entries = self._table.look(None, request.scope)
        return locks.holder_in(entries, request, blocker)


class EtcdLockManager(locks.QueueLockManager[EtcdQueue]):
    """Locks in etcd; ``lock.uri`` is the address of its JSON gateway."""

    name = "etcd"

    def __init__(
        self,
        uri: str,
        *,
        space: str = "",
        settings: locks.LockSettings | None = None,
        clock: locks.Clock = locks.SYSTEM_CLOCK,
        events: locks.Events | None = None,
        threads: locks.Threads = locks.THREADS,
        host: locks.Host = locks.SYSTEM_HOST,
    ) -> None:
        settings, events = settings or locks.LockSettings(), events or locks.Events()

        def made() -> locks.Parts[EtcdQueue]:
            held, emitter = locks.Held(threads), locks.LockEventEmitter(events, clock)
            tickets = locks.Tickets[EtcdTicket](host.new_id().hex)
            retries = locks.Retries(clock, lambda: settings.lease_ms / 1000)
            leases = EtcdLeases(Etcd(uri, settings.lease_ms / 3000), space, tickets.client, settings)
            keeper = locks.Keeper(leases, tickets, retries, threads.heartbeat, emitter, events, settings, clock)
            table = EtcdLockTable(leases, retries, host)
            queue = EtcdQueue(leases, tickets, keeper, retries, table, clock)
            acquirer = locks.Acquirer(queue, None, held, emitter, settings, clock)
            return locks.Parts(queue=queue, acquirer=acquirer, held=held, keeping=keeper, table=table)

        super().__init__(_GUARANTEES, settings, made)


_GUARANTEES = locks.Guarantees(
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
