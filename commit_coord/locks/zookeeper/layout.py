"""Paths and formats of the nodes of the ``zookeeper`` lock manager. Pure: no driver, no time.

Theory of operation
    Operation locks use Hive's own layout, so that Hive's clients in the same namespace and commit_coord exclude each
    other::

        /<namespace>/<db>/<table>/<k=v>/LOCK-<SHARED|EXCLUSIVE>-<sequence>

    If Hive's clients do not share the namespace, an X lock on a table or database writes a *mark*: the request id
    becomes the data of the resource's node. A request that locks a partition also takes S on the table. If the data of
    the table's node is empty, there is no X lock on the table, so the request need not list the table's locks and
    partitions. A mark is written together with its lock and may outlive it. A request that finds a mark lists the
    locks. If there is no X lock among them, it clears the mark, but only if the node still has the version that was
    read before the list.

    Nodes that Hive does not know are outside of Hive's layout::

        /commit-coord/<namespace>/commit/<db>/<table>/LOCK-EXCLUSIVE-<sequence>     commit latches
        /commit-coord/<namespace>/requests/<request id>                             one node for each request
        /commit-coord/<namespace>/statements/<request id>                           exists while the process of a LOCK
                                                                                    statement waits for its grant
        /commit-coord/<namespace>/offers/<request id>                               the offer of the request
        /commit-coord/<namespace>/waits/<request id>                                the requests that block it, if
                                                                                    its thread holds other locks
        /commit-coord/<namespace>/notes/<db>/<table>                                note of the last latch holder
        /commit-coord/<namespace>/writers/<client>                                  clients in a migration (writers)
        /commit-coord/<namespace>/journal/entries/<request id>
        /commit-coord/<namespace>/journal/expiry/<span>/<request id>

    In all these paths, ``<namespace>`` is ``<namespace>@<space>`` if the catalog has a space.

    One ``multi`` creates all nodes of a request. The node below ``requests`` is the *marker* of the request: it is
    created and deleted together with the locks, and no other node can have its name. So the marker shows whether a
    multi with a lost reply was executed, and it makes every deletion safe:

    1. We hold ``LOCK-EXCLUSIVE-0000000000``. An administrator releases it by force, and the empty parent is deleted.
    2. Another client locks the same resource. Sequence numbers start again at 0, so its node has the same name.
    3. We release. The multi deletes our marker first; the marker does not exist, so the multi changes nothing.

    A granted LOCK statement outlives its process, so its nodes are persistent. Until it is granted, an ephemeral node
    below ``statements`` shows that its process waits. The multi that records the grant in the marker deletes this node.
    So a statement without the node, and without a grant, is *abandoned*: any client may remove it.

Source: Hive ``ZooKeeperHiveLockManager``, ``HiveLockObject``, ``FileUtils.escapePathName``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from urllib.parse import quote, unquote

from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Owner, Resource
from commit_coord.protocol.deadlock import Obstacle, Wait

HIVE_NAMESPACE = "hive_zookeeper_namespace"
"""Hive's default for ``hive.zookeeper.namespace``."""

HIVE_APPLICATION = "hive"
"""The application of an owner without a marker: only Hive's own clients write lock nodes without markers."""

SHARED = "/commit-coord"
"""The node below which each namespace has its own nodes."""

STEP_BYTES = 600_000
"""A request above this size is split into several multis. A server closes the connection on a packet above
``jute.maxbuffer`` (default 1 MiB); its log records and messages to followers are somewhat larger than the packet."""

STATEMENT_LENGTH = 200
"""Maximum number of characters of the statement in a lock node; the marker keeps a longer part."""

STATEMENTS_LENGTH = 20_000
"""Characters of the statement in all lock nodes of one request together."""

_LONGEST_STATEMENT = 10_000

_MARKED_DEPTH = 2  # only databases and tables have marks; a partition has few locks

_OPERATION_HEADER = 9  # multi header: type, done, error
_LENGTHS = 4 + 4 + 4 + 4  # of path, data and ACL list, and the flags

_LOCK = re.compile(r"LOCK-(SHARED|EXCLUSIVE|SEMI_SHARED)-(-?\d{9,})")

_ESCAPED = re.compile(
    # Hive's list, except '=', which separates key from value and is escaped only within the value
    r"[\x00-\x1f\"#%'*/:?\\\x7f{\[\]^"
    # characters that ZooKeeper refuses in a path; in Java, a character beyond the basic plane is two surrogates
    r"\x80-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]"
)


def escape(name: str) -> str:
    """Return one level of a resource as the name of a node."""
    key, equals, value = name.partition("=")
    text = _ESCAPED.sub(_percent, key) + equals + _ESCAPED.sub(_percent, value).replace("=", "%3D")
    if text in (".", "..") or _LOCK.fullmatch(text):
        # ZooKeeper refuses "." and "..", and a name such as LOCK-SHARED-0000000000 would be read as a lock node.
        return f"%{ord(text[0]):02X}{text[1:]}"
    return text


def unescape(name: str) -> str:
    """Return the level of a resource whose node is named *name*."""
    return unquote(name)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class LockNode:
    """The parts of a lock node's name."""

    name: str
    mode: LockMode
    sequence: int

    @classmethod
    def parse(cls, name: str) -> LockNode | None:
        """Return the parts of *name*, None if it is not the name of a lock node.

        Hive's SEMI_SHARED is compatible with readers and not with X, so it counts as S.
        """
        match = _LOCK.fullmatch(name)
        if match is None:
            return None
        mode = LockMode.EXCLUSIVE if match[1] == "EXCLUSIVE" else LockMode.SHARED
        return cls(name, mode, int(match[2]))

    def before(self, other: LockNode) -> bool:
        """Return whether this node entered the queue before *other*.

        The sequence number has 32 bits and becomes negative after 2,147,483,647 locks on one resource. Therefore this
        compares the distance of the two numbers modulo 2^32.
        """
        return 0 < (other.sequence - self.sequence) % 2**32 < 2**31


def lock_nodes(names: Iterable[str]) -> list[LockNode]:
    """Return the lock nodes among *names*, oldest first."""
    nodes = [node for name in names if (node := LockNode.parse(name)) is not None]
    if not nodes:
        return []
    # The sequence number may have overflowed, so the smallest number need not be the oldest: sort by distance.
    anchor = nodes[0]
    return sorted(nodes, key=lambda node: (node.sequence - anchor.sequence + 2**31) % 2**32)


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The paths of one namespace.

    Args:
        namespace: ``hive.zookeeper.namespace``.
        space: Separates independent catalogs. Empty: share the namespace with Hive's clients.
    """

    namespace: str
    space: str

    @property
    def _name(self) -> str:
        # Unambiguous: '@' is allowed in no namespace (checked at start).
        return f"{self.namespace}@{escape(self.space)}" if self.space else self.namespace

    def is_marked(self, scope: LockScope, resource: Resource) -> bool:
        """Return whether X locks on *resource* write marks. Hive's clients write none, so in their namespace: no."""
        return bool(self.space) and scope is LockScope.OPERATION and len(resource.path) <= _MARKED_DEPTH

    def root(self, scope: LockScope) -> str:
        """Return the root node of all locks of *scope*."""
        return f"/{self._name}" if scope is LockScope.OPERATION else f"/commit-coord/{self._name}/commit"

    @property
    def requests(self) -> str:
        """The parent of all markers."""
        return f"/commit-coord/{self._name}/requests"

    def request(self, request_id: str, part: int = 0) -> str:
        """Return the marker of a request. A request that needs several multis has one marker for each *part*."""
        return f"{self.requests}/{_id(request_id)}" + (f"+{part}" if part else "")

    def resource(self, scope: LockScope, resource: Resource) -> str:
        """Return the parent of the lock nodes on *resource*."""
        return "/".join([self.root(scope), *map(escape, resource.path)])

    def lock(self, scope: LockScope, resource: Resource, mode: LockMode) -> str:
        """Return the path of a lock node, without the sequence number that the server adds."""
        return f"{self.resource(scope, resource)}/LOCK-{mode.value}-"

    def statement(self, request_id: str) -> str:
        """Return the node that exists while the process of a LOCK statement waits."""
        return f"/commit-coord/{self._name}/statements/{_id(request_id)}"

    def offer(self, request_id: str) -> str:
        """Return the node of a request's offer."""
        return f"/commit-coord/{self._name}/offers/{_id(request_id)}"

    def note(self, table: Resource) -> str:
        """Return the node with the note of the last latch holder of *table*."""
        return "/".join([f"/commit-coord/{self._name}/notes", *map(escape, table.path)])

    @property
    def waits(self) -> str:
        """The parent of all published waits."""
        return f"/commit-coord/{self._name}/waits"

    def wait(self, request_id: str) -> str:
        """Return the node that says which requests block a request."""
        return f"{self.waits}/{_id(request_id)}"

    @property
    def writers(self) -> str:
        """The parent of the nodes of all clients in a migration."""
        return f"/commit-coord/{self._name}/writers"

    def writer(self, client: str) -> str:
        """Return the node of a client."""
        return f"{self.writers}/{_id(client)}"

    def entry(self, request_id: str) -> str:
        """Return the journal entry of a request."""
        return f"/commit-coord/{self._name}/journal/entries/{_id(request_id)}"

    @property
    def expiries(self) -> str:
        """The parent of the spans of time in which journal entries expire."""
        return f"/commit-coord/{self._name}/journal/expiry"

    def expiry(self, span: int, request_id: str) -> str:
        """Return the node that says in which span an entry expires."""
        return f"{self.expiries}/{span}/{_id(request_id)}"


def _id(request_id: str) -> str:
    # ZooKeeper refuses nodes named '.' or '..'. The result never contains '+', which separates the part.
    return quote(request_id, safe="").replace(".", "%2E")


# The data of nodes.


def lock_data(request: LockRequest, requested_at_ms: int) -> bytes:
    """Return a lock node's data in Hive's format: five fields, separated by ``:``, which no field may contain."""
    length = min(STATEMENT_LENGTH, STATEMENTS_LENGTH // len(request.locks))
    # The address is last and never empty: Java's split drops empty fields at the end, and then Hive's parser fails.
    fields = (
        request.request_id,
        str(requested_at_ms),
        "EXPLICIT" if request.explicit else "IMPLICIT",
        request.owner.statement.strip()[:length],
        request.owner.host or "unknown",
    )
    return ":".join(field.replace(":", "") for field in fields).encode()


@dataclass(frozen=True, slots=True)
class LockData:
    """The data of a lock node of commit_coord or Hive."""

    request_id: str
    explicit: bool
    owner: Owner

    @classmethod
    def parse(cls, data: bytes) -> LockData:
        """Parse *data*. A missing field becomes empty, because another client may have written any data."""
        fields = data.decode("utf-8", "replace").split(":")
        query_id, _, mode, statement, address = (*fields, "", "", "", "", "")[:5]
        owner = Owner(user="", host=address, pid=0, application=HIVE_APPLICATION, statement=statement)
        return cls(query_id, mode == "EXPLICIT", owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestData:
    """The data of a marker.

    Args:
        client: The id of the lock manager that entered the request.
        owner: The owner of the request.
        scope: Operation or commit.
        lease_ms: How long the server keeps the session without a message; None for a granted LOCK statement's.
        agent: The thread that made the request.
        shows_its_wait: Whether a node below ``statements`` exists as long as the request of a LOCK statement waits.
            Clients of an earlier release write none.
    """

    client: str
    owner: Owner
    scope: LockScope
    lease_ms: int | None
    agent: str
    shows_its_wait: bool = False

    def text(self) -> bytes:
        """Return the marker's data."""
        owner = replace(self.owner, statement=self.owner.statement[:_LONGEST_STATEMENT])
        return json.dumps(asdict(replace(self, owner=owner)), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> RequestData | None:
        """Parse the data of a marker; None if it is not valid."""
        try:
            fields = json.loads(data)
            return cls(
                client=fields["client"],
                owner=Owner(**fields["owner"]),
                scope=LockScope(fields["scope"]),
                lease_ms=fields["lease_ms"],
                agent=fields["agent"],
                shows_its_wait=fields.get("shows_its_wait", False),
            )
        except (ValueError, KeyError, TypeError):
            return None


def wait_data(wait: Wait) -> bytes:
    """Return the data of a published wait."""
    resource, mode = wait.wanted
    return json.dumps({**asdict(wait), "wanted": [str(resource), mode.value]}, separators=(",", ":")).encode()


def parse_wait(data: bytes) -> Wait | None:
    """Parse the data of a published wait; None if it is not valid."""
    try:
        fields = json.loads(data)
        resource, mode = fields["wanted"]
        return Wait(
            **{
                **fields,
                "owner": Owner(**fields["owner"]),
                "wanted": (Resource.parse(resource), LockMode(mode)),
                "obstacles": [Obstacle(**obstacle) for obstacle in fields["obstacles"]],
            }
        )
    except (ValueError, KeyError, TypeError):
        return None


def journal_data(entry: JournalEntry, expires_at_ms: int) -> bytes:
    """Return the data of a journal entry."""
    return json.dumps({**entry.stored, "expires_at_ms": expires_at_ms}, separators=(",", ":")).encode()


def parse_journal(data: bytes) -> tuple[JournalEntry, int]:
    """Parse the data of a journal entry; return the entry and its end time."""
    fields = json.loads(data)
    expires_at_ms: int = fields["expires_at_ms"]
    return JournalEntry.parse(fields), expires_at_ms


# Requests that are too large for one packet.


def packets(sizes: Iterable[int], limit: int = STEP_BYTES) -> Iterator[slice]:
    """Split items of these *sizes*, in their order, so that those of each slice together stay below *limit* bytes."""
    start = total = count = 0
    for count, size in enumerate(sizes, 1):
        if total + size > limit and total:
            yield slice(start, count - 1)
            start, total = count - 1, 0
        total += size
    if total:
        yield slice(start, count)


def create_size(path: str, data_size: int, acl_size: int) -> int:
    """Return the bytes in a multi that create a node."""
    return _OPERATION_HEADER + _LENGTHS + len(path.encode()) + data_size + acl_size


def chunks(
    layout: NodeLayout, request: LockRequest, *, data_size: int, acl_size: int, limit: int = STEP_BYTES
) -> Iterator[tuple[tuple[Resource, LockMode], ...]]:
    """Split the locks of *request*, in their order, so that the multi of each part stays below *limit* bytes.

    The size of each lock includes its parent, because the multi may have to create that too.
    """
    sizes = (
        create_size(layout.resource(request.scope, resource), 0, acl_size)
        + create_size(layout.lock(request.scope, resource, mode), data_size, acl_size)
        for resource, mode in request.locks
    )
    for part in packets(sizes, limit):
        yield request.locks[part]


def blocks(node: LockNode, own: LockNode) -> bool:
    """Return whether *node* is before *own* in its queue and conflicts with it."""
    return node.before(own) and LockMode.EXCLUSIVE in (node.mode, own.mode)


def nearest_before(own: LockNode, queue: Sequence[LockNode]) -> LockNode | None:
    """Return the nearest node before *own* in *queue* that conflicts with it, None if *own* is granted.

    No request can enter the queue before *own*, so it is enough to watch the nearest one; see ``protocol.contention``.
    """
    blocking = [node for node in queue if blocks(node, own)]
    return blocking[-1] if blocking else None
