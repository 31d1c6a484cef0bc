"""Where the ``zookeeper`` lock manager keeps what, and in which format. Decides only; no driver, no time.

Theory of operation
    Operation locks lie in Hive's own layout, so that Hive's clients, where they share the namespace, exclude us and
    we them::

        /<namespace>/<db>/<table>/<k=v>/LOCK-<SHARED|EXCLUSIVE>-<sequence>

    Where the namespace is ours alone, a table or database that somebody locks in X is *marked*: its node holds the
    request's id. Who locks a partition holds S on the table, and finds out by its empty node that no X stands
    there, without a list of all the table's locks and partitions. Marks are made with the lock and may outlive it: who
    finds one looks at the list, and wipes it when no X is in there and the node has the version that it had before.

    What is ours alone lies beside it, out of Hive's sight::

        /commit-coord/<namespace>/commit/<db>/<table>/LOCK-EXCLUSIVE-<sequence>     commit latches
        /commit-coord/<namespace>/requests/<request id>                             one node a request
        /commit-coord/<namespace>/offers/<request id>                               what it offers
        /commit-coord/<namespace>/waits/<request id>                                whom it waits for, after a while
        /commit-coord/<namespace>/notes/<db>/<table>                                what the last holder of a latch left
        /commit-coord/<namespace>/writers/<client>                                  who is ready to move (writers)
        /commit-coord/<namespace>/journal/entries/<request id>
        /commit-coord/<namespace>/journal/expiry/<span>/<request id>

    A request's nodes are all created by one ``multi``. Its node below ``requests`` is its identity: it is created with
    the locks, deleted with the locks, and nothing else can have its name. That answers whether a multi whose reply
    was lost has happened, and it makes every removal safe:

    1. We hold ``LOCK-EXCLUSIVE-0000000000``. An administrator frees it, and the empty parent is cleaned up.
    2. Somebody else locks the same resource. Sequence numbers start again: its node has the same name.
    3. We release. The multi that deletes our node deletes our request's node first, which is gone: nothing happens.

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
"""The application of an owner who is known by a lock node alone: only Hive's own clients write no more."""

STEP_BYTES = 600_000
"""Requests above this size are cut. A server closes the connection on a packet above ``jute.maxbuffer``, 1 MiB unless
configured; what it writes to its log and sends to its followers is somewhat larger than what it received."""

STATEMENT_LENGTH = 200
"""Characters of a statement that a lock node shows; the request's node has more of it."""

STATEMENTS_LENGTH = 20_000
"""Characters of it that all lock nodes of one request show together."""

_LONGEST_STATEMENT = 10_000

_MARKED_DEPTH = 2  # databases and tables: what lies below has few locks, and no mark

_OPERATION_HEADER = 9  # multi header: type, done, error
_LENGTHS = 4 + 4 + 4 + 4  # of path, data and ACL list, and the flags

_LOCK = re.compile(r"LOCK-(SHARED|EXCLUSIVE|SEMI_SHARED)-(-?\d{9,})")

_ESCAPED = re.compile(
    # Hive's list, except '=', which separates key from value and is escaped within the value alone
    r"[\x00-\x1f\"#%'*/:?\\\x7f{\[\]^"
    # what ZooKeeper refuses in a path; Java counts a character beyond the basic plane as two surrogates
    r"\x80-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]"
)


def escape(name: str) -> str:
    """Return one level of a resource as the name of a node."""
    key, equals, value = name.partition("=")
    text = _ESCAPED.sub(_percent, key) + equals + _ESCAPED.sub(_percent, value).replace("=", "%3D")
    if text in (".", "..") or _LOCK.fullmatch(text):
        # No path to ZooKeeper, or no resource to a reader of locks.
        return f"%{ord(text[0]):02X}{text[1:]}"
    return text


def unescape(name: str) -> str:
    """Return the level of a resource that *name* stands for."""
    return unquote(name)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class LockNode:
    """A lock node's name, taken apart."""

    name: str
    mode: LockMode
    sequence: int

    @classmethod
    def parse(cls, name: str) -> LockNode | None:
        """Return what *name* says, None if it names no lock.

        Hive's SEMI_SHARED stands beside readers and not beside X; it counts as S.
        """
        match = _LOCK.fullmatch(name)
        if match is None:
            return None
        mode = LockMode.EXCLUSIVE if match[1] == "EXCLUSIVE" else LockMode.SHARED
        return cls(name, mode, int(match[2]))

    def before(self, other: LockNode) -> bool:
        """Return whether this one entered the queue before *other*.

        The number has 32 bits and turns negative after 2,147,483,647 locks on one resource, so that what counts is
        the distance between the two.
        """
        return 0 < (other.sequence - self.sequence) % 2**32 < 2**31


def lock_nodes(names: Iterable[str]) -> list[LockNode]:
    """Return the lock nodes among *names*, oldest first."""
    nodes = [node for name in names if (node := LockNode.parse(name)) is not None]
    if not nodes:
        return []
    # Around the turn of the number "smallest" means nothing: the oldest is the one that all others come behind.
    anchor = nodes[0]
    return sorted(nodes, key=lambda node: (node.sequence - anchor.sequence + 2**31) % 2**32)


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one namespace.

    Args:
        namespace: ``hive.zookeeper.namespace``.
        space: Separates catalogs that do not concern each other. Empty is Hive's own namespace.
    """

    namespace: str
    space: str

    @property
    def _name(self) -> str:
        # '@' never stands in a quoted space nor, checked at start, in a namespace.
        return f"{self.namespace}@{escape(self.space)}" if self.space else self.namespace

    def is_marked(self, scope: LockScope, resource: Resource) -> bool:
        """Return whether X on *resource* leaves a mark; Hive's clients make none."""
        return bool(self.space) and scope is LockScope.OPERATION and len(resource.path) <= _MARKED_DEPTH

    def root(self, scope: LockScope) -> str:
        """Return what all locks of *scope* lie below."""
        return f"/{self._name}" if scope is LockScope.OPERATION else f"/commit-coord/{self._name}/commit"

    @property
    def requests(self) -> str:
        """What the requests' own nodes lie below."""
        return f"/commit-coord/{self._name}/requests"

    def request(self, request_id: str, part: int = 0) -> str:
        """Return the node of a request; of the *part* of it that did not fit into the first multi."""
        return f"{self.requests}/{_id(request_id)}" + (f"+{part}" if part else "")

    def resource(self, scope: LockScope, resource: Resource) -> str:
        """Return the node that the queue of *resource* lies below."""
        return "/".join([self.root(scope), *map(escape, resource.path)])

    def lock(self, scope: LockScope, resource: Resource, mode: LockMode) -> str:
        """Return the path of a lock, without the number that the server adds."""
        return f"{self.resource(scope, resource)}/LOCK-{mode.value}-"

    def offer(self, request_id: str) -> str:
        """Return the node of what a request offers."""
        return f"/commit-coord/{self._name}/offers/{_id(request_id)}"

    def note(self, table: Resource) -> str:
        """Return the node of what the last holder of the latch of *table* left."""
        return "/".join([f"/commit-coord/{self._name}/notes", *map(escape, table.path)])

    @property
    def waits(self) -> str:
        """What the waits of threads that hold locks lie below."""
        return f"/commit-coord/{self._name}/waits"

    def wait(self, request_id: str) -> str:
        """Return the node that says whom a request waits for."""
        return f"{self.waits}/{_id(request_id)}"

    @property
    def writers(self) -> str:
        """What the nodes of those lie below who take part in a migration."""
        return f"/commit-coord/{self._name}/writers"

    def writer(self, client: str) -> str:
        """Return the node of a client."""
        return f"{self.writers}/{_id(client)}"

    def entry(self, request_id: str) -> str:
        """Return the journal's node of a request."""
        return f"/commit-coord/{self._name}/journal/entries/{_id(request_id)}"

    @property
    def expiries(self) -> str:
        """What the spans in which journal entries expire lie below."""
        return f"/commit-coord/{self._name}/journal/expiry"

    def expiry(self, span: int, request_id: str) -> str:
        """Return the node that says in which span an entry expires."""
        return f"{self.expiries}/{span}/{_id(request_id)}"


def _id(request_id: str) -> str:
    # Neither '.' nor '..' is a node; nothing that stands for itself in here is '+'.
    return quote(request_id, safe="").replace(".", "%2E")


# What nodes hold.


def lock_data(request: LockRequest, requested_at_ms: int) -> bytes:
    """Return a lock node's data as Hive writes it: five fields, ``:`` between them and in none of them."""
    length = min(STATEMENT_LENGTH, STATEMENTS_LENGTH // len(request.locks))
    # The client's address is last and never empty: Java's split drops empty fields at the end, and Hive then fails.
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
    """What a lock node says of its request; of Hive's too."""

    request_id: str
    explicit: bool
    owner: Owner

    @classmethod
    def parse(cls, data: bytes) -> LockData:
        """Return what *data* says. Whatever is missing is empty: another client may have written anything."""
        fields = data.decode("utf-8", "replace").split(":")
        query_id, _, mode, statement, address = (*fields, "", "", "", "", "")[:5]
        owner = Owner(user="", host=address, pid=0, application=HIVE_APPLICATION, statement=statement)
        return cls(query_id, mode == "EXPLICIT", owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestData:
    """What a request's node says.

    Args:
        client: Whose request it is: the manager that entered it.
        owner: Who asked.
        scope: Operation or commit.
        lease_ms: How long the server keeps the session without a message; None for an explicit lock.
        agent: The thread that made it.
    """

    client: str
    owner: Owner
    scope: LockScope
    lease_ms: int | None
    agent: str

    def text(self) -> bytes:
        """Return what the node holds."""
        owner = replace(self.owner, statement=self.owner.statement[:_LONGEST_STATEMENT])
        return json.dumps(asdict(replace(self, owner=owner)), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes) -> RequestData | None:
        """Return what the node holds, None if it is not ours."""
        try:
            fields = json.loads(data)
            return cls(
                client=fields["client"],
                owner=Owner(**fields["owner"]),
                scope=LockScope(fields["scope"]),
                lease_ms=fields["lease_ms"],
                agent=fields["agent"],
            )
        except (ValueError, KeyError, TypeError):
            return None


def wait_data(wait: Wait) -> bytes:
    """Return what the node of a wait holds."""
    resource, mode = wait.wanted
    return json.dumps({**asdict(wait), "wanted": [str(resource), mode.value]}, separators=(",", ":")).encode()


def parse_wait(data: bytes) -> Wait:
    """Return the wait that a node tells of."""
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


def journal_data(entry: JournalEntry, expires_at_ms: int) -> bytes:
    """Return what a journal node holds."""
    return json.dumps({**asdict(entry), "expires_at_ms": expires_at_ms}, separators=(",", ":")).encode()


def parse_journal(data: bytes) -> tuple[JournalEntry, int]:
    """Return the entry that a journal node holds, and when it expires."""
    fields = json.loads(data)
    expires_at_ms: int = fields.pop("expires_at_ms")
    return JournalEntry(**{**fields, "snapshot_ids": tuple(fields["snapshot_ids"])}), expires_at_ms


# Requests that are too large for one multi.


def create_size(path: str, data_size: int, acl_size: int) -> int:
    """Return the bytes that creating a node takes in a multi."""
    return _OPERATION_HEADER + _LENGTHS + len(path.encode()) + data_size + acl_size


def chunks(
    layout: Layout, request: LockRequest, *, data_size: int, acl_size: int, limit: int = STEP_BYTES
) -> Iterator[tuple[tuple[Resource, LockMode], ...]]:
    """Yield the locks of *request* in their order, cut where a multi would grow above *limit*.

    Each is counted with its parent, which may have to be created too.
    """
    chunk: list[tuple[Resource, LockMode]] = []
    size = 0
    for resource, mode in request.locks:
        parent = create_size(layout.resource(request.scope, resource), 0, acl_size)
        needed = parent + create_size(layout.lock(request.scope, resource, mode), data_size, acl_size)
        if chunk and size + needed > limit:
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append((resource, mode))
        size += needed
    yield tuple(chunk)


def blocks(node: LockNode, own: LockNode) -> bool:
    """Return whether *node* is before *own* in its queue and conflicts with it."""
    return node.before(own) and LockMode.EXCLUSIVE in (node.mode, own.mode)


def nearest_before(own: LockNode, queue: Sequence[LockNode]) -> LockNode | None:
    """Return the nearest node before *own* in *queue* that conflicts with it, None when it is granted.

    Nobody can step in before it, so everyone else that conflicts is this one or before it; see
    ``protocol.contention``.
    """
    blocking = [node for node in queue if blocks(node, own)]
    return blocking[-1] if blocking else None
