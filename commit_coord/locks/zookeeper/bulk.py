"""Reads many nodes of ZooKeeper in few packets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.zookeeper import queries
from commit_coord.locks.zookeeper.connection import EnsembleConnection
from commit_coord.locks.zookeeper.driver import KazooTimeoutError, ZnodeStat, kazoo_errors, prefix_root, serialization
from commit_coord.locks.zookeeper.layout import packets
from commit_coord.locks.zookeeper.nodes import CheckNode, ChildListing, Node

_BUNCH = 1000
"""Maximum number of operations in one packet. It ends earlier if their paths are long."""

_OVERHEAD = 20
"""Bytes of an operation without its path: the header, the length of the path, a version or a flag."""


def bunches(paths: Sequence[str]) -> list[slice]:
    """Split reads or deletions of *paths*, so that those of each slice fit into one packet."""
    return [
        slice(start, min(start + _BUNCH, part.stop))
        for part in packets(_OVERHEAD + len(path.encode()) for path in paths)
        for start in range(part.start, part.stop, _BUNCH)
    ]


class MultiRead:
    """A request for many reads in one packet, built like kazoo's own requests.

    Source: ZooKeeper ``MultiOperationRecord``, ``MultiResponse``.
    """

    type = 22

    def __init__(self, reads: Sequence[Any]) -> None:
        self._reads = reads
        self._chroot = ""

    def send(self, client: Any) -> Any:
        """Send the request through *client*; return the asynchronous result."""
        self._chroot, result = client.chroot, client.handler.async_result()
        client._call(self, result)
        return result

    def serialize(self) -> bytes:
        """Return the packet without its header."""
        packet = bytearray()
        for read in self._reads:
            packet += serialization.MultiHeader(read.type, False, -1).serialize()
            packet += read._replace(path=prefix_root(self._chroot, read.path)).serialize()
        return bytes(packet + serialization.MultiHeader(-1, True, -1).serialize())

    @staticmethod
    def deserialize(packet: bytes, offset: int) -> list[Any]:
        """For each read, return its result, None if the node does not exist, or the error of the read.

        A result is as kazoo's own request returns it.
        """
        results: list[Any] = []
        header, offset = serialization.MultiHeader.deserialize(packet, offset)
        while not header.done:
            if header.type == serialization.GetData.type:
                data, offset = serialization.read_buffer(packet, offset)
                stat = ZnodeStat._make(serialization.stat_struct.unpack_from(packet, offset))
                offset += serialization.stat_struct.size
                results.append((data, stat))
            elif header.type == serialization.GetChildren.type:
                (count,) = serialization.int_struct.unpack_from(packet, offset)
                offset += serialization.int_struct.size
                names = []
                for _ in range(count):
                    name, offset = serialization.read_string(packet, offset)
                    names.append(name)
                results.append(names)
            else:
                (code,) = serialization.int_struct.unpack_from(packet, offset)
                offset += serialization.int_struct.size
                gone = code == kazoo_errors.NoNodeError.code
                results.append(None if gone else kazoo_errors.EXCEPTIONS[code]())
            header, offset = serialization.MultiHeader.deserialize(packet, offset)
        return results


class BulkReader:
    """Reads many nodes; if the servers support multiRead, a thousand of them in one packet."""

    def __init__(self, connection: EnsembleConnection) -> None:
        self._connection = connection

    def nodes(self, paths: Sequence[str], patience: float) -> list[Node | None]:
        """Return the node of each path, None if there is no such node."""
        return [*map(queries.node, self._read([serialization.GetData(path, None) for path in paths], patience))]

    def names(self, paths: Sequence[str], patience: float) -> list[list[str] | None]:
        """Return the names of the children of each path, None where there is no such node."""
        return self._read([serialization.GetChildren(path, None) for path in paths], patience)

    def children(self, paths: Sequence[str], patience: float) -> list[ChildListing | None]:
        """Return the children of each path, None where there is no such node."""
        # A multiRead can't return a node's children and its stat together. So read the stat before and after the
        # children: if pzxid is the same, no child was created or deleted in between, and the children fit the stat.
        asked = [
            read
            for path in paths
            for read in (
                serialization.GetData(path, None),
                serialization.GetChildren(path, None),
                serialization.GetData(path, None),
            )
        ]
        answers = self._read(asked, patience)
        listings: list[ChildListing | None] = []
        for path, before, names, after in zip(paths, answers[::3], answers[1::3], answers[2::3], strict=True):
            if before and after and names is not None and before[1].pzxid == after[1].pzxid:
                listings.append(ChildListing(names, queries.stat(after[1])))
            else:
                (answer,) = self._connection.ask([queries.children_of(path)], patience)
                listings.append(queries.listing(queries.found(answer)))
        return listings

    def _read(self, reads: Sequence[Any], patience: float) -> list[Any]:
        """Return the answer to each of *reads*, None if there is no such node; many in one packet."""
        found: list[Any] = []
        has_multi_read = self._has_multi_read(min(patience, BRIEFLY))
        for part in bunches([read.path for read in reads]):
            bunch = reads[part]
            if has_multi_read:
                (answer,) = self._connection.ask([MultiRead(bunch).send], patience)
                found += answer()
            else:
                found += [
                    queries.found(answer)
                    for answer in self._connection.ask([queries.alone(read) for read in bunch], patience)
                ]
        for read, result in zip(reads, found, strict=True):
            if isinstance(result, kazoo_errors.NoAuthError):
                raise self._connection.refusals.denied(read.path)
            if isinstance(result, Exception):
                raise self._connection.refusals.refused(0, CheckNode(read.path), result)
        return found

    def _has_multi_read(self, patience: float) -> bool:
        """Return whether the servers know multiRead.

        Servers before 3.6 close the session of a client that sends it, so the first try uses a temporary session.
        """
        if self._connection.multi_read is None:
            probe = self._connection.probe()
            if probe.done.wait(patience) and probe.client is not None:
                read = MultiRead([serialization.GetChildren("/", None)])
                try:
                    read.send(probe.client).get(timeout=patience)
                    self._connection.multi_read = True
                except kazoo_errors.KazooException:
                    self._connection.multi_read = False
                except KazooTimeoutError:
                    pass  # A busy server, of whatever version: the next caller tries again.
            threading.Thread(target=probe.close, name="commit-coord-zookeeper-close", daemon=True).start()
        return self._connection.multi_read or False
