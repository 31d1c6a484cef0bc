"""``Idempotency-Key``: a request that is sent again with its key gets the same answer, and is not carried out twice.

A client that sends a request again has not got the answer. The first request may have been carried out, may still run,
or may never have arrived. The server takes these steps:

1. If this process still carries the first request out, the repeat waits for it.
2. If an answer is kept, it is given again. Kept are 200, 201, 204, and each 4xx that a repeat would get, too; no 5xx.
3. A commit uses the key as its request id, and lands once: the table's history contains the id, and the latch separates
   two requests with one key, even at different servers. A repeat is refused only by a conflict that is found after the
   look for the first request, in the table that the first request found, and if its sender is still allowed to commit.
   Otherwise the outcome is unknown. A repeat creates no table.
4. Any other request takes a lock on its key, so it waits for a first request at another server. If that request began
   and its answer is not known, the states of the store tell whether it was carried out
   (:mod:`commit_coord.rest.doubts`). They are compared once more before the request is refused, because the change of
   the first request may come late.

Source: Iceberg's ``rest-catalog-open-api.yaml``, ``idempotency-key``. It leaves two answers open. A key that was used
for another request gets 422, as in the IETF's draft of the header. A repeat that has waited too long gets 503, because
clients take a 409 as a proof that nothing was done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, LockError
from commit_coord.locks.base import Lease
from commit_coord.model import LockMode, Resource
from commit_coord.rest import tables
from commit_coord.rest.access import Forbidden
from commit_coord.rest.answered import LIFETIME_MS, KeyedRequests
from commit_coord.rest.doubts import (
    COMMITS,
    Handler,
    commit_tables,
    creates_tables,
    doubt_of,
    if_nothing_done,
    refuse_other_tables,
)
from commit_coord.rest.errors import AWAY, AnswerGone, StillRunning, executed, is_final, is_refusal
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import HttpAnswer, MalformedRequest, MetadataHolder, Request, UnprocessableRequest

_WAIT_S = 10.0
"""How long a repeat waits for the first request. It occupies a thread of the server meanwhile."""

_NO_CHANGES = frozenset({tables.report_metrics})
"""POST routes that change nothing; they ignore keys."""


class Idempotency:
    """Carries requests out, and a request with a key only once. Thread safe.

    Args:
        wait_s: How long a repeat waits for the first request.
        clock: Tells when a kept answer expires.
        changed: What threads wait for that carry out requests with one key; None makes one.
    """

    def __init__(
        self, wait_s: float = _WAIT_S, *, clock: Clock = SYSTEM_CLOCK, changed: threading.Condition | None = None
    ) -> None:
        self._wait_s, self._clock = wait_s, clock
        self._changed = threading.Condition() if changed is None else changed
        self._running: set[str] = set()
        self._answered: dict[str, KeyedRequests] = {}

    def lifetime(self, warehouse: Warehouse) -> str | None:
        """Return for how long a client may use a key again, in the notation of ISO 8601.

        None if keys are not advertised: the answers are not shared, or do not survive a restart.
        """
        guarantees, lifetime_ms = warehouse.catalog.locks.guarantees, _lifetime_ms(warehouse)
        if not (guarantees.journal and guarantees.survives_restart) or lifetime_ms < 1000:
            return None
        return f"PT{lifetime_ms // 1000}S"

    def answer(self, handler: Handler, warehouse: Warehouse, request: Request) -> HttpAnswer:
        """Return the answer of *handler* to *request*; for a repeat, the answer to the first request.

        Raises:
            UnprocessableRequest: The key was used for another request.
            StillRunning: The first request with the key did not end in time, or its outcome is not known.
            Exception: Whatever *handler* raises.
        """
        if request.method not in ("POST", "DELETE") or handler in _NO_CHANGES:
            return handler(warehouse, request)
        key = request.idempotency_key
        if key is None:
            return handler(warehouse, request)
        with self._alone(key):
            answered = self._of(warehouse)
            if (found := _replayed(answered, key, warehouse, request)) is not None:
                return found
            creates = creates_tables(handler, request)
            if handler in COMMITS and not creates:
                return _committed(answered, key, handler, warehouse, request, None)
            with self._locked(answered, key, warehouse) as lease:
                found = _replayed(answered, key, warehouse, request) if answered.shared else None
                if found is not None:
                    return found
                execute = _committed if handler in COMMITS else _settled_or_executed
                return execute(answered, key, handler, warehouse, request, lease)

    def forbidden(self, error: Forbidden, handler: Handler, warehouse: Warehouse, request: Request) -> Exception:
        """Return what to answer to a known sender that may not send *request*: *error*, unless it may have landed.

        1. A commit lands, and its reply is lost.   2. The grants of the client are taken away.   3. It sends the commit
        again. After a 403 it would delete the files of its commit, which the table uses.
        """
        if handler not in COMMITS:
            return error
        try:
            key = request.idempotency_key
            if key is None or not (answered := self._of(warehouse)).begun_on(key, request):
                return error
            kept = answered.answer(key, request)
        except (MalformedRequest, UnprocessableRequest):
            return error
        except LockError as unavailable:
            return unavailable
        if kept is not None and kept.status >= 400:
            return error
        return CommitStateUnknown(
            "the request was begun when its sender was allowed to commit; now the sender is not allowed to, so the "
            "server does not say whether the commit has landed",
            request_id=key,
        )

    def _of(self, warehouse: Warehouse) -> KeyedRequests:
        with self._changed:
            found = self._answered.get(warehouse.catalog.name)
            if found is None:
                found = KeyedRequests(warehouse.catalog.locks, _lifetime_ms(warehouse), self._clock)
                self._answered[warehouse.catalog.name] = found
            return found

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Let other requests with *key* in this process wait until the end of the block."""
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._running, self._wait_s):
                raise StillRunning("the first request with this Idempotency-Key is still running; send it again")
            self._running.add(key)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(key)
                self._changed.notify_all()

    def _locked(self, answered: KeyedRequests, key: str, warehouse: Warehouse) -> AbstractContextManager[Lease | None]:
        """Let other requests with *key* at other servers wait, if the servers share their locks."""
        if not answered.shared:
            return nullcontext()
        catalog = warehouse.catalog
        request = catalog.lock_request({Resource(("idempotency-keys", key)): LockMode.EXCLUSIVE}, statement="request")
        return catalog.locks.acquire(request, deadline=catalog.coordinator.clock.now() + self._wait_s)


def _lifetime_ms(warehouse: Warehouse) -> int:
    return min(LIFETIME_MS, warehouse.catalog.settings.commit_journal_lifetime_ms)


def _replayed(answered: KeyedRequests, key: str, warehouse: Warehouse, request: Request) -> HttpAnswer | None:
    found = answered.answer(key, request)
    if found is None or found.location is None:
        return found
    try:
        return replace(warehouse.answers.load(found.location, request), holder=found.holder)
    except Exception as error:
        # Later commits have deleted the file, most likely. The protocol allows an answer with a newer state.
        if found.holder is None:
            raise AnswerGone("the request was executed; its original answer can't be repeated") from error
        return _newer(found.holder, warehouse, request)


def _newer(holder: MetadataHolder, warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Return the answer with the present metadata of *holder*.

    Raises:
        AnswerGone: *holder* does not exist any more, or has another name.
    """
    catalog = warehouse.catalog
    with executed(holder.name, has_key=True):
        if holder.is_view:
            location = catalog.view_location(holder.name)
            uuid = catalog.load_view(holder.name).metadata.view_uuid
        else:
            location = catalog.metadata_location(holder.name)
            uuid = str(catalog.coordinator.read(location).table_uuid)
        if uuid != holder.uuid:
            raise NoSuchTableError(f"another table has the name now: {holder.name}")
        return replace(warehouse.answers.load(location, request), holder=holder)


def _settled_or_executed(
    answered: KeyedRequests, key: str, handler: Handler, warehouse: Warehouse, request: Request, lease: Lease | None
) -> HttpAnswer:
    doubt = doubt_of(handler, request)
    now = doubt.look(warehouse, request)
    found = answered.begun_on(key, request)
    is_first = not found
    """Whether no copy before has done anything."""
    untouched = answered.nothing_done_on(key, request) if found == {} else None
    before = found or untouched or now

    def settled_if_refused(warehouse: Warehouse, request: Request) -> HttpAnswer:
        try:
            return handler(warehouse, replace(request, found=before))
        except Exception as refused:
            # 1. We look, and the change of an earlier copy is still under way to the store.   2. It is carried out.
            # 3. Our own change is refused because of it: the table exists already, or does not exist any more.
            if not is_final(refused) or (is_first and doubt.guesses):
                raise
            seen = doubt.look(warehouse, request)
            # After a copy that did nothing, what others have changed until our own look is not the request's change.
            late = doubt.settled(warehouse, request, before if untouched is None else now, seen)
            if late is not None:
                return late
            if not is_first:
                doubt.refuse_unsettled(request, before, seen)
            raise

    try:
        if untouched is not None:
            doubt.refuse_changed(request, untouched, now)
        if is_first:
            answered.begin(key, request, before)
        settled = doubt.settled(warehouse, request, before, now) if untouched is None else None
        if settled is not None:
            answered.end(key, request, settled)
            return settled
        if not is_first:
            doubt.refuse_unsettled(request, before, now)
        return _execute_begun(answered, key, settled_if_refused, warehouse, request, lease)
    except (CommitNotApplied, StillRunning, OSError, *AWAY):
        # No copy has done anything: whatever was sent to the store is a CommitStateUnknown.
        repeat_on = if_nothing_done(handler, request, before)
        if is_first and repeat_on is not None and _is_alone(lease):
            answered.withdraw(key, request, repeat_on)
        raise


def _committed(
    answered: KeyedRequests, key: str, handler: Handler, warehouse: Warehouse, request: Request, lease: Lease | None
) -> HttpAnswer:
    # The look comes before the question whether another copy has begun. If it has not, we see the tables as they were
    # before any copy landed.
    now = commit_tables(handler, warehouse, request)
    found = answered.begun_on(key, request) or None
    if found is not None:
        refuse_other_tables(found, now, key, may_be_new=True)
    before = now if found is None else found

    def refused_if_proven(warehouse: Warehouse, request: Request) -> HttpAnswer:
        try:
            return handler(warehouse, replace(request, found=found or {}))
        except Exception as refused:
            if is_refusal(refused):
                tables_now = commit_tables(handler, warehouse, request)
                refuse_other_tables(before, tables_now, key, may_be_new=found is None)
                if found is not None and not isinstance(refused, CommitFailedException | LockError):
                    # 1. A commit creates a table, and its reply is lost.   2. The table is renamed, and its namespace
                    # dropped.   3. The repeat is refused, because there is no namespace: nobody looked for the commit.
                    # Other checks may have changed since, too: those of the catalog's settings, or of a newer server.
                    raise CommitStateUnknown(
                        "an earlier copy of the request was begun and may have landed; this copy was refused: "
                        f"{refused}",
                        request_id=key,
                    ) from refused
            raise

    try:
        if found is None:
            answered.begin(key, request, now)
        return _execute_begun(answered, key, refused_if_proven, warehouse, request, lease)
    except (CommitNotApplied, StillRunning, *AWAY):
        # No copy has created anything: a repeat may do so.
        if found is None and creates_tables(handler, request) and _is_alone(lease):
            answered.withdraw(key, request, {})
        raise


def _is_alone(lease: Lease | None, max_age_ms: int | None = 0) -> bool:
    """Return whether no other copy has run since *lease* was acquired: the lock on the key, if servers share it.

    1. A copy begins and stalls, and its lock ends.   2. A later copy carries the change out, and its server is killed.
    3. The first copy gets no latch. It must not tell the next one that nothing was done.
    """
    try:
        if lease is not None:
            lease.ensure_active(max_age_ms)
    except LockError:
        return False
    return True


def _refuse_late(lease: Lease | None) -> None:
    """Return if no other copy has run since *lease* was acquired.

    1. A copy that creates a table stalls before its start is kept, and its lock ends.   2. A later copy creates the
    table, and the client renames it.   3. The first copy goes on. It would create the table once more.

    Raises:
        StillRunning: Another copy may have run; this one has done nothing.
    """
    if not _is_alone(lease, max_age_ms=None):  # no question to the service, unless the heartbeat is late
        raise StillRunning(_LATE)


_LATE = "the lock on the Idempotency-Key ended while the server was busy; send the request again with this key"


def _execute_begun(
    answered: KeyedRequests, key: str, handler: Handler, warehouse: Warehouse, request: Request, lease: Lease | None
) -> HttpAnswer:
    _refuse_late(lease)
    try:
        done = handler(warehouse, request)
    except CommitStateUnknown as error:
        if isinstance(error.__cause__, LockError):
            # This try did not get the latch, so it could not find out whether an earlier one has landed.
            raise StillRunning(f"{error}; send it again with the same Idempotency-Key") from error
        raise
    except Exception as error:
        if is_final(error) and not _is_alone(lease):
            # The change of a later copy may be the reason: its answer counts, and a repeat finds out without one.
            raise StillRunning(_LATE) from error
        answered.end(key, request, error)
        raise
    answered.end(key, request, done)
    return done
