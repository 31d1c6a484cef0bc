"""The ZooKeeper operations that the lock manager needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import groupby
from typing import Any

from commit_coord.clock import Clock
from commit_coord.errors import LockError
from commit_coord.locks.base import BRIEFLY, Interrupted
from commit_coord.locks.zookeeper import queries
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.bulk import BulkReader, bunches
from commit_coord.locks.zookeeper.connection import EnsembleConnection, SessionEvent
from commit_coord.locks.zookeeper.driver import kazoo_errors
from commit_coord.locks.zookeeper.nodes import (
    ChangeNode,
    CheckNode,
    ChildListing,
    CreateNode,
    DeleteNode,
    MultiRefused,
    Node,
    NodeOperation,
    Reason,
    Stat,
    ancestors,
)
from commit_coord.locks.zookeeper.session_age import Heard

_FAMILY = 32
"""Up to this many children of one node are checked one by one; for more children, their parent is listed."""

_FEW = 16
"""Up to this many reads are sent one by one."""


_BEGINNING = 10.0
"""Seconds for which a call that a person made waits for the first session."""


class ZooKeeperSession:
    """A client of the ensemble. It has one ZooKeeper session at a time, and opens a new one if that is lost.

    Args:
        access: Addresses and authentication.
        timeout_ms: The session timeout that the client requests.
        clock: The clock.
        listener: Called with every :class:`SessionEvent` in kazoo's thread; must not block.
        connect: Creates the connection.
    """

    def __init__(
        self,
        access: EnsembleAccess,
        timeout_ms: int,
        clock: Clock,
        listener: Callable[[SessionEvent], None],
        *,
        connect: Callable[
            [EnsembleAccess, int, Clock, Callable[[SessionEvent], None]], EnsembleConnection
        ] = EnsembleConnection,
    ) -> None:
        self._clock = clock
        self.connection = connect(access, timeout_ms, clock, listener)
        self._bulk = BulkReader(self.connection)

    @property
    def id(self) -> int:
        """The server's id of the present session, 0 when there is none."""
        return self.connection.id

    @property
    def number(self) -> int:
        """The number of the present session; grows when a session is lost."""
        return self.connection.number

    @property
    def timeout_ms(self) -> int:
        """The negotiated session timeout."""
        return self.connection.timeout_ms

    @property
    def silent_since(self) -> float | None:
        """The time when the connection broke; None while there is one."""
        return self.connection.silent_since

    @property
    def heard(self) -> Heard:
        """The time from which the servers count the present session."""
        return self.connection.heard

    def hold(self) -> None:
        """Send and receive nothing until :meth:`go_on`, as if the process were stopped; for tests."""
        self.connection.hold()

    def go_on(self) -> None:
        """Continue after :meth:`hold`."""
        self.connection.go_on()

    def abandon(self) -> None:
        """Keep this process, a forked child, from touching the session of its parent when it exits."""
        self.connection.abandon()

    def call(self, *, opens: bool = True) -> AbstractContextManager[None]:
        """See :meth:`EnsembleConnection.call`."""
        return self.connection.call(opens=opens)

    @property
    def is_closed(self) -> bool:
        """See :attr:`EnsembleConnection.is_closed`."""
        return self.connection.is_closed

    @property
    def is_over(self) -> bool:
        """See :attr:`EnsembleConnection.is_over`."""
        return self.connection.is_over

    def close(self) -> None:
        """End the session, and with it every ephemeral node. A later call opens a new session."""
        self.connection.close()

    # Operations. ``patience`` is the time limit for each batch of answers, in seconds.

    def reach(self, patience: float = BRIEFLY) -> None:
        """Return when there is a connection. This sends nothing.

        Raises:
            LockServiceUnavailable: There is no connection within *patience*.
        """
        self.connection.connected(self._clock.now() + patience)

    def begin(self) -> None:
        """Return when the first session has begun, or after 10 seconds at the latest.

        It is for calls that a person makes, because a person prefers to wait instead of retrying. On busy servers a
        first session can take seconds. If the client already has a session, this returns at once.
        """
        if not self.connection.id:
            with suppress(LockError):  # The caller's next request meets the same problem, and raises the error.
                self.reach(_BEGINNING)

    def multi(
        self,
        operations: Sequence[NodeOperation],
        patience: float = BRIEFLY,
        *,
        then_list: Sequence[str] = (),
        then_get: Sequence[str] = (),
    ) -> tuple[list[str], list[ChildListing | None], list[Node | None]]:
        """Execute all *operations* or none.

        Missing parents are created in the same multi, so that no client finds an empty parent and deletes it.

        Returns:
            The paths of the created nodes; the listings of *then_list* and the nodes of *then_get* after the multi,
            which are requested together with it.

        Raises:
            MultiRefused: Nothing was done, because one of the operations was refused.
            Interrupted: No answer: the multi may have been executed, or may be executed later within this session.
            LockServiceUnavailable: The servers refuse the multi.
        """
        parents: list[str] = []
        until = self._clock.now() + patience
        while True:
            try:
                every = [*map(CreateNode, parents), *operations]
                created, listings, nodes = self._multi_once(every, patience, then_list, then_get)
                return created[len(parents) :], listings, nodes
            except MultiRefused as refused:
                index = refused.index - len(parents)
                if index >= 0 and not (refused.reason is Reason.MISSING and isinstance(operations[index], CreateNode)):
                    raise MultiRefused(index, refused.reason) from None
                # A parent is missing, or another client created or deleted one since our check: check again.
                if self._clock.now() >= until:
                    raise Interrupted(
                        "other clients kept creating or deleting parent nodes", path=operations[max(0, index)].path
                    ) from None
            new = [one.path for one in operations if isinstance(one, CreateNode)]
            wanted = {parent for path in new for parent in ancestors(path)}.difference(new)
            parents = self._missing(wanted, patience)

    def _missing(self, paths: Iterable[str], patience: float) -> list[str]:
        """Return those of *paths* that do not exist, parents first."""
        missing: dict[str, None] = {}
        for _, level in groupby(sorted(paths, key=lambda path: (_depth(path), path)), key=_depth):
            siblings: dict[str, list[str]] = {}
            for path in level:
                siblings.setdefault(path.rpartition("/")[0], []).append(path)
            # Don't check children of a missing parent. Thousands of partitions of one table cost one listing.
            known = {parent: group for parent, group in siblings.items() if parent not in missing}
            many = [parent for parent, group in known.items() if len(group) > _FAMILY]
            few = [path for group in known.values() if len(group) <= _FAMILY for path in group]
            there = {path for path, stat in zip(few, self.exists(few, patience), strict=True) if stat is not None}
            for parent, listing in zip(many, self.children(many, patience), strict=True):
                there.update(f"{parent}/{name}" for name in (listing.names if listing is not None else ()))
            missing.update(dict.fromkeys(path for group in siblings.values() for path in group if path not in there))
        return list(missing)

    def _multi_once(
        self, operations: Sequence[NodeOperation], patience: float, then_list: Sequence[str], then_get: Sequence[str]
    ) -> tuple[list[str], list[ChildListing | None], list[Node | None]]:
        number = self.connection.number

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                match operation:
                    case CreateNode(path, data, ephemeral, sequential):
                        transaction.create(path, data, self.connection.rights(path), ephemeral, sequential)
                    case DeleteNode(path, version):
                        transaction.delete(path, version)
                    case CheckNode(path):
                        transaction.check(path, -1)
                    case ChangeNode(path, data, version):
                        transaction.set_data(path, data, version)
            return transaction.commit_async()

        reads = [*map(queries.children_of, then_list), *(queries.data_of(path, None) for path in then_get)]
        done, *answers = self.connection.ask([commit, *reads], patience, of_leader=True)
        results = queries.found(done)
        for index, result in enumerate(results or ()):
            if isinstance(result, Exception) and not isinstance(
                result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
            ):
                raise self.connection.refusals.refused(index, operations[index], result)
        if number != self.connection.number:
            raise Interrupted("the session was lost during a request")
        created = [result for result in results if isinstance(result, str)]
        found = [queries.found(answer) for answer in answers]
        return created, [*map(queries.listing, found[: len(then_list)])], [*map(queries.node, found[len(then_list) :])]

    def delete_each(self, paths: Sequence[str], patience: float = BRIEFLY) -> None:
        """Delete those of *paths* that exist and have no children; list children before their parents."""
        for bunch in bunches(paths):
            left = self._not_deleted(paths[bunch], patience)
            self.connection.ask([queries.deletion_of(path) for path in left], patience, of_leader=True)

    def _not_deleted(self, paths: Sequence[str], patience: float) -> list[str]:
        """Delete *paths* in one multi; if one is refused, drop it and try again, for up to 16 refusals.

        Returns:
            Paths to delete one by one: all if there are at most 16; none after a successful multi; after 16 refusals,
            the paths that were not refused.
        """
        left = list(paths)
        refused = _FEW if len(left) > _FEW else 0
        while refused and left:
            try:
                self.multi([*map(DeleteNode, left)], patience)
                return []
            except MultiRefused as stopped:
                del left[stopped.index]
                refused -= 1
        return left

    def children(
        self, paths: Sequence[str], patience: float = BRIEFLY, *, sync: bool = False
    ) -> list[ChildListing | None]:
        """Return the children of each path, None if there is no such node; *sync* as in :meth:`exists`."""
        if len(paths) > _FEW:
            self.connection.ask([queries.sync] if sync else [], patience, of_leader=sync)
            return self._bulk.children(paths, patience)
        answers = self.connection.ask(
            [*([queries.sync] if sync else []), *map(queries.children_of, paths)], patience, of_leader=sync
        )
        return [queries.listing(queries.found(answer)) for answer in answers[int(sync) :]]

    def queue(self, path: str, note: str, patience: float = BRIEFLY) -> tuple[ChildListing | None, Node | None]:
        """Ask the leader (sync), then read the children of *path* and the node *note*; all in one round trip."""
        _, listing, node = self.connection.ask(
            [queries.sync, queries.children_of(path), queries.data_of(note, None)], patience, of_leader=True
        )
        return queries.listing(queries.found(listing)), queries.node(queries.found(node))

    def get(
        self, paths: Sequence[str], patience: float = BRIEFLY, *, watch: Callable[[str | None], None] | None = None
    ) -> list[Node | None]:
        """Return the node of each path, None if there is no such node.

        *watch* is called once for each existing node: with its path when the node changes or is deleted, or with None
        when the connection breaks.
        """
        if watch is None and len(paths) > _FEW:
            return self._bulk.nodes(paths, patience)
        answers = self.connection.ask([queries.data_of(path, watch) for path in paths], patience)
        return [queries.node(queries.found(answer)) for answer in answers]

    def exists(self, paths: Sequence[str], patience: float = BRIEFLY, *, sync: bool = False) -> list[Stat | None]:
        """Return the stat of each path, None if there is no such node.

        *sync* asks the leader first. Otherwise a follower without connection to the leader would answer from its old
        state, even after the leader has expired our session.
        """
        if len(paths) > _FEW:
            self.connection.ask([queries.sync] if sync else [], patience, of_leader=sync)
            return [None if node is None else node.stat for node in self.get(paths, patience)]
        asked = [*([queries.sync] if sync else []), *map(queries.stat_of, paths)]
        answers = [queries.found(answer) for answer in self.connection.ask(asked, patience, of_leader=sync)]
        return [None if answer is None else queries.stat(answer) for answer in answers[int(sync) :]]

    def names(self, paths: Sequence[str], patience: float = BRIEFLY) -> list[list[str] | None]:
        """Return the names of the children of each path, None if there is no such node."""
        if len(paths) > _FEW:
            return self._bulk.names(paths, patience)
        return [None if listing is None else listing.names for listing in self.children(paths, patience)]


def _depth(path: str) -> int:
    return path.count("/")
