"""A lock manager that keeps its locks in etcd. It imports the public contract alone: docs/write-a-lock-manager.md.

One request is one key, attached to an etcd lease. The revision that created the key is the place of the request in
every queue: it waits for each earlier key that locks one of its resources in a conflicting mode. A waiter watches the
key of the nearest blocker, from the revision at which it saw that key. When a lease ends, etcd deletes its key.

The id of a lease is made of the names of the client and of the request. So a request can be removed by its name, and a
put that arrives late finds its lease revoked.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import urllib3

from commit_coord.locks import public as locks
from commit_coord.locks.public import Acquire, LockEntry, LockRefused, LockRequest, LockScope, Resource

_NOT_FOUND, _EXISTS = 5, 9
"""gRPC's codes for a lease that etcd does not know, and for one that it has already."""

_TICK_S = 0.5  # so long a waiter watches before it checks whether the owner of the blocker has died


class Etcd:
    """etcd's JSON gateway. Threads may share it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._http = urllib3.PoolManager(maxsize=8, timeout=timeout_s, retries=False)

    def call(self, path: str, body: dict[str, Any], *, accept: int | None = None) -> dict[str, Any]:
        """Return the answer to one call; an error with the code *accept* is an answer, too."""
        try:
            answer = self._http.request("POST", f"{self._url}/v3/{path}", body=json.dumps(body))
        except urllib3.exceptions.HTTPError as error:
            locks.raise_of_signal_handler(error)
            raise locks.Interrupted("etcd did not answer", server=self._url, reason=error) from error
        found: dict[str, Any] = json.loads(answer.data)
        if answer.status != 200 and found.get("code") != accept:
            kind = locks.Interrupted if answer.status >= 500 else locks.LockServiceUnavailable
            raise kind("etcd refused a call", server=self._url, call=path, reason=found.get("error"))
        return found

    def wait_for_end(self, key: str, revision: int, seconds: float) -> None:
        """Block until *key* is deleted after *revision*, for so many seconds at most."""
        wanted = {"key": _coded(key), "start_revision": str(revision + 1), "filters": ["NOPUT"]}
        body, limit = json.dumps({"create_request": wanted}), urllib3.Timeout(read=seconds)
        try:
            reply = self._http.request("POST", f"{self._url}/v3/watch", body=body, timeout=limit, preload_content=False)
            try:
                any("events" in json.loads(line)["result"] for line in reply)
            finally:
                reply.close()
        except urllib3.exceptions.HTTPError as error:  # The waiter looks again in any case.
            locks.raise_of_signal_handler(error)


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


@dataclass(slots=True, eq=False, kw_only=True)
class EtcdTicket(locks.Ticket):
    """A request in etcd; its place is None while the client does not know whether it entered."""

    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InEtcd(locks.Blocker):
    """One request as etcd had it at the revision *seen_at*; *lease_id* is "0" where it has no lease."""

    request: LockRequest
    key: str
    place: int
    seen_at: int
    lease_id: str


def _nearest(own: InEtcd, found: Sequence[InEtcd]) -> InEtcd | None:
    """Return the last request before *own* that it has to wait for."""
    wanted = dict(own.request.locks)

    def blocks(one: InEtcd) -> bool:
        return one.place < own.place and any(
            resource in wanted and not locks.compatible(wanted[resource], mode) for resource, mode in one.request.locks
        )

    return max(filter(blocks, found), key=lambda one: one.place, default=None)


def _requests_in(answer: dict[str, Any], seen_at: str) -> Iterator[InEtcd]:
    for one in answer.get("kvs", ()):
        key, value = b64decode(one["key"]).decode(), json.loads(b64decode(one["value"]))
        _, scope, request_id = key.rsplit("/", 2)
        owner = locks.Owner(**value["owner"])
        parts = tuple((Resource.parse(text), locks.LockMode[name]) for text, name in value["locks"])
        yield InEtcd(
            request=LockRequest(
                scope=LockScope(scope), locks=parts, owner=owner, request_id=request_id, explicit=value["explicit"]
            ),
            request_id=request_id,
            owner=owner,
            requested_at_ms=value["since_ms"],
            key=key,
            place=int(one["create_revision"]),
            seen_at=int(seen_at),
            lease_id=one.get("lease", "0"),
        )


@dataclass
class EtcdRequests(locks.LeaseService[EtcdTicket], locks.LockTable):
    """The requests of one catalog in etcd: what keeps them, and how they are listed and ended by force."""

    etcd: Etcd
    space: str
    client: str
    settings: locks.LockSettings
    retries: locks.Retries
    host: locks.Host

    def _key(self, scope: LockScope, request_id: str = "") -> str:
        return f"commit-coord/{self.space}/{scope.value}/{request_id}"

    def _lease_id(self, request: LockRequest) -> str:
        digest = hashlib.sha256(f"{self.client} {request.request_id}".encode()).digest()
        return str((int.from_bytes(digest[:8], "big") >> 1) or 1)

    def _range(self, scope: LockScope) -> dict[str, str]:
        return {"key": _coded(self._key(scope)), "range_end": _coded(self._key(scope)[:-1] + "0")}  # "0" follows "/"

    def enter(self, request: LockRequest, now_ms: int) -> list[InEtcd]:
        """Create the key of *request* and return all requests of its scope."""
        lease_id, key = self._lease_id(request), self._key(request.scope, request.request_id)
        self.etcd.call("lease/grant", {"ID": lease_id, "TTL": str(math.ceil(self.lease_seconds))}, accept=_EXISTS)
        parts = [[str(resource), mode.name] for resource, mode in request.locks]
        value = {"owner": asdict(request.owner), "locks": parts, "explicit": request.explicit, "since_ms": now_ms}
        is_new = {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        put = {"request_put": {"key": _coded(key), "value": _coded(json.dumps(value)), "lease": lease_id}}
        look = {"request_range": self._range(request.scope)}
        answer = self.etcd.call("kv/txn", {"compare": [is_new], "success": [put, look], "failure": [look]})
        found = list(_requests_in(answer["responses"][-1]["response_range"], answer["header"]["revision"]))
        if not any(one.key == key and one.lease_id == lease_id for one in found):
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        return found

    def all_of(self, scope: LockScope) -> list[InEtcd]:
        """Return all requests of *scope*, in their order."""
        answer = self.etcd.call("kv/range", self._range(scope))
        return sorted(_requests_in(answer, answer["header"]["revision"]), key=lambda one: one.place)

    def change(self, key: str, place: int | None, change: dict[str, Any]) -> bool:
        """Do *change* if the request with *key* is there at *place*; return whether it is."""
        is_there = {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": str(place)}
        return bool(self.etcd.call("kv/txn", {"compare": [is_there], "success": [change]}).get("succeeded"))

    def delete(self, key: str, place: int | None) -> bool:
        """Delete the request that has *key* at *place*; return whether it was there."""
        return self.change(key, place, {"request_delete_range": {"key": _coded(key)}})

    def detach(self, ticket: EtcdTicket) -> bool:
        """Take the lease from the key of an explicit lock, which outlives its client; return whether it is there."""
        key = self._key(ticket.request.scope, ticket.request.request_id)
        return self.change(key, ticket.place, {"request_put": {"key": _coded(key), "ignore_value": True, "lease": "0"}})

    def remove(self, ticket: EtcdTicket) -> None:
        self.etcd.call("lease/revoke", {"ID": self._lease_id(ticket.request)}, accept=_NOT_FOUND)  # and its key
        if ticket.request.explicit and ticket.place is not None:
            self.delete(self._key(ticket.request.scope, ticket.request.request_id), ticket.place)

    def renewed(self, tickets: Sequence[EtcdTicket], *, thorough: bool) -> Collection[EtcdTicket]:
        for ticket in filter(self.needs_heartbeat, tickets):
            self.etcd.call("lease/keepalive", {"ID": self._lease_id(ticket.request)})
        there = {one.place for scope in {ticket.request.scope for ticket in tickets} for one in self.all_of(scope)}
        return [ticket for ticket in tickets if ticket.place in there]

    def needs_heartbeat(self, ticket: EtcdTicket) -> bool:
        return not ticket.request.explicit or ticket.lease is None  # an explicit lock has a lease while it waits

    def look(self, resource: Resource | None, scope: LockScope | None) -> list[LockEntry]:
        depth = len(resource.path) if resource else 0
        entries = [entry for one, listed in self._listed() for entry in listed if scope in (None, one.request.scope)]
        return [entry for entry in entries if not resource or entry.resource.path[:depth] == resource.path]

    def _listed(self) -> Iterator[tuple[InEtcd, list[LockEntry]]]:
        for scope in LockScope:
            found = self.retries.briefly(lambda scope=scope: self.all_of(scope))  # type: ignore[misc]
            for one in found:
                blocker = _nearest(one, found)
                blocked_by, left_ms = blocker.request_id if blocker else None, self._expires_in_ms(one.lease_id)
                yield one, locks.entries_of(one.request, one.place, one.requested_at_ms, blocked_by, left_ms)

    def _expires_in_ms(self, lease_id: str) -> int | None:
        if lease_id == "0":
            return None
        left_s = int(self.etcd.call("lease/timetolive", {"ID": lease_id}).get("TTL", 0))
        return max(1, min(left_s * 1000, self.settings.lease_ms))

    def free(self, request_id: str | None, resource: Resource | None) -> list[LockEntry]:
        return self._ended(lambda one: one.request_id == request_id or resource in dict(one.request.locks))

    def reap(self, *, dry_run: bool) -> list[LockEntry]:  # of those that etcd will not end by itself
        return self._ended(self.is_dead, dry_run=dry_run)

    def _ended(self, is_chosen: Callable[[InEtcd], bool], *, dry_run: bool = False) -> list[LockEntry]:
        chosen = [(one, listed) for one, listed in self._listed() if is_chosen(one)]
        return [entry for one, listed in chosen if dry_run or self.delete(one.key, one.place) for entry in listed]

    def is_dead(self, one: InEtcd) -> bool:
        """Return whether the owner of *one* has certainly ended, so that its lock may end, too."""
        return not one.request.explicit and self.host.is_dead(one.owner.process)


@dataclass
class EtcdQueue(locks.Queue):
    """The queues in etcd, as one client sees them."""

    requests: EtcdRequests
    tickets: locks.Tickets[EtcdTicket]
    keeper: locks.Keeper[EtcdTicket]
    clock: locks.Clock

    def knows(self, request_id: str) -> bool:
        return request_id in self.tickets

    def enter(self, acquire: Acquire) -> InEtcd | None:
        request, sent, retries = acquire.request, self.clock.now(), self.requests.retries
        found = retries.until(acquire.deadline, lambda: self.requests.enter(request, self.clock.wall_ms()))
        own = next(one for one in found if one.request_id == request.request_id)
        self.tickets[request.request_id] = EtcdTicket(request=request, place=own.place, last_confirmed_at=sent)
        self.keeper.heartbeat.ensure_running()
        return _nearest(own, found)

    def wait(self, acquire: Acquire, blocker: locks.Blocker, until: float) -> InEtcd | None:
        assert isinstance(blocker, InEtcd)
        request, retries = acquire.request, self.requests.retries
        ticket = self.tickets[request.request_id]
        if self.requests.is_dead(blocker):
            retries.until(until, lambda: self.requests.delete(blocker.key, blocker.place))
        elif not acquire.is_closed:
            seconds = max(0.01, min(until - self.clock.now(), _TICK_S))
            self.requests.etcd.wait_for_end(blocker.key, blocker.seen_at, seconds)
        found = retries.until(until, lambda: self.requests.all_of(request.scope))
        if own := next((one for one in found if one.place == ticket.place), None):
            return _nearest(own, found)
        if self.clock.now() - ticket.last_confirmed_at < self.requests.lease_seconds:
            raise LockRefused("the request was taken out of the queue by force", locks=request)
        # 1. This process stalls for longer than a lease.   2. etcd deletes the key.   So it enters again, at the end.
        del self.tickets[request.request_id]
        self.requests.remove(ticket)
        return self.enter(acquire)

    def grant(self, acquire: Acquire) -> locks.HandoverLease:
        ticket = self.tickets[acquire.request.request_id]
        assert ticket.place is not None
        if acquire.request.explicit and not self.requests.detach(ticket):
            raise locks.Interrupted("the lease ended before the lock was granted", locks=acquire.request)
        ticket.lease = lease = locks.HeartbeatLease(self.keeper, ticket, locks.Generation(ticket.place))
        return lease

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        self.keeper.leave(request, EtcdTicket(request=request))

    def holder(self, request: LockRequest, blocker: locks.Blocker) -> locks.Holder:
        return locks.holder_of(self.requests.look, request, blocker)


class EtcdLockManager(locks.QueueLockManager[EtcdQueue]):
    """Locks in etcd; ``lock.uri`` is the address of its JSON gateway."""

    name = "etcd"
    guarantees = locks.Guarantees(
        mutual_exclusion=True, hierarchy=True, fifo=True, reach=locks.Reach.NETWORK, expiry=True,
        survives_restart=True, explicit_locks=True, journal=False, clock=locks.ExpiryClock.SERVER,
    )  # fmt: skip

    def __init__(
        self, uri: str, *, space: str, settings: locks.LockSettings, clock: locks.Clock, events: locks.Events
    ) -> None:
        def made() -> locks.Parts[EtcdQueue]:
            host, threads, held = locks.SYSTEM_HOST, locks.THREADS, locks.Held(locks.THREADS, locks.SYSTEM_HOST)
            emitter, tickets = locks.LockEventEmitter(events, clock), locks.Tickets[EtcdTicket](host.new_id().hex)
            retries, etcd = locks.Retries(clock, lambda: settings.lease_ms / 1000), Etcd(uri, settings.lease_ms / 3000)
            requests = EtcdRequests(etcd, space, tickets.client, settings, retries, host)
            keeper = locks.Keeper(requests, tickets, retries, threads.heartbeat, emitter, events, clock)
            queue = EtcdQueue(requests, tickets, keeper, clock)
            acquirer = locks.Acquirer(queue, None, held, emitter, settings, clock)
            return locks.Parts(queue=queue, acquirer=acquirer, held=held, keeping=keeper, table=requests)

        super().__init__(self.guarantees, settings, made)
