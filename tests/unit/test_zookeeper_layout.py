"""Where locks lie in ZooKeeper and what their nodes hold: Hive's layout, Hive's format."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commit_coord.errors import ConfigError
from commit_coord.locks.zookeeper.access import ALL, EnsembleAccess, Right
from commit_coord.locks.zookeeper.bulk import bunches
from commit_coord.locks.zookeeper.layout import (
    LockData,
    LockNode,
    NodeLayout,
    RequestData,
    chunks,
    escape,
    journal_data,
    lock_data,
    lock_nodes,
    nearest_before,
    packets,
    parse_journal,
    unescape,
)
from commit_coord.locks.zookeeper.nodes import ancestors
from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Owner, Resource

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
OPERATION, COMMIT = LockScope.OPERATION, LockScope.COMMIT
HIVE = NodeLayout("hive_zookeeper_namespace", "")
OWNER = Owner(user="ann", host="db1", pid=7, application="etl", statement="INSERT INTO t SELECT ':'", process="p")
NO_PATH = re.compile("[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def asked(*locks: tuple[LockMode, str], explicit: bool = False, owner: Owner = OWNER) -> LockRequest:
    pairs = [(Resource.parse(text), mode) for mode, text in locks]
    return LockRequest.of(OPERATION, pairs, owner=owner, request_id="r1", explicit=explicit)


# Paths.


def test_locks_lie_where_hive_looks_for_them() -> None:
    path = HIVE.lock(OPERATION, Resource(("sales", "orders", "day=2026-01-31")), X)
    assert path == "/hive_zookeeper_namespace/sales/orders/day=2026-01-31/LOCK-EXCLUSIVE-"
    assert HIVE.lock(OPERATION, Resource(("sales",)), S) == "/hive_zookeeper_namespace/sales/LOCK-SHARED-"


def test_latches_lie_out_of_hives_sight() -> None:
    path = HIVE.lock(COMMIT, Resource(("sales", "orders")), X)
    assert path == "/commit-coord/hive_zookeeper_namespace/commit/sales/orders/LOCK-EXCLUSIVE-"


def test_catalogs_of_their_own_do_not_see_each_other() -> None:
    """Nor can one be taken for a database of another one."""
    roots = [NodeLayout("hive", space).root(scope) for space in ("", "a", "b", "a/b", "é") for scope in LockScope]
    assert len(set(roots)) == len(roots)
    for root in roots:
        assert not [other for other in roots if other.startswith(f"{root}/")]


def test_every_request_and_each_of_its_parts_has_a_node_of_its_own() -> None:
    names = {HIVE.request(name, part) for name in ("a", "a+1", "a/1", ".", "..", "a%2B1") for part in (0, 1, 2)}
    assert len(names) == 18
    assert not [name for name in names if name.rpartition("/")[2] in (".", "..")]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("orders", "orders"),
        ("day=2026-01-31", "day=2026-01-31"),
        ("url=http://a/b?c=d", "url=http%3A%2F%2Fa%2Fb%3Fc%3Dd"),
        ("k=50%", "k=50%25"),
        ("ключ=значение", "ключ=значение"),
        (".", "%2E"),
        ("..", "%2E."),
        ("LOCK-SHARED-0000000001", "%4COCK-SHARED-0000000001"),
        ("k=😀", "k=%F0%9F%98%80"),
    ],
)
def test_names_are_escaped_as_hive_does_and_as_zookeeper_demands(name: str, expected: str) -> None:
    assert escape(name) == expected
    assert unescape(expected) == name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("%2F")
@example("LOCK-EXCLUSIVE-2147483647")
def test_any_name_can_be_a_node_and_comes_back(name: str) -> None:
    node = escape(name)
    assert unescape(node) == name
    assert NO_PATH.search(node) is None
    assert node not in (".", "..")
    assert LockNode.parse(node) is None


# Nodes.


def test_the_data_of_a_lock_is_what_hive_reads() -> None:
    """Five fields; ':' is in none of them; the last one is never empty, since Java's split would drop it."""
    data = lock_data(asked((X, "db/t"), explicit=True), 1234).decode()
    assert data == "r1:1234:EXPLICIT:INSERT INTO t SELECT '':db1"
    nobody = Owner(user="", host="", pid=0, application="", statement="")
    assert lock_data(asked((X, "db/t"), owner=nobody), 1234).decode() == "r1:1234:IMPLICIT::unknown"


@pytest.mark.parametrize("data", [b"", b"q", b"q:1:IMPLICIT:select 1:10.0.0.7", b"q:1:EXPLICIT:a:b:c", b"\xff:\xfe"])
def test_whatever_another_client_wrote_can_be_read(data: bytes) -> None:
    found = LockData.parse(data)
    assert found.owner.application == "hive"
    assert found.explicit == (b"EXPLICIT" in data)


def test_a_request_says_who_asked() -> None:
    data = RequestData(client="c", owner=OWNER, scope=COMMIT, lease_ms=15_000, agent="a")
    assert RequestData.parse(data.text()) == data
    assert RequestData.parse(b"") is RequestData.parse(b"[]") is None
    long = RequestData(
        client="c",
        owner=Owner(user="u", host="h", pid=1, application="a", statement="x" * 10**6),
        scope=COMMIT,
        agent="a",
        lease_ms=1,
    )
    assert len(long.text()) < 20_000


def test_a_journal_entry_comes_back() -> None:
    entry = JournalEntry(key="r", table="a.b", table_uuid="u", metadata_location="m", snapshot_ids=(1, 2))
    assert parse_journal(journal_data(entry, 99)) == (entry, 99)


# Queues.


def node(mode: str, sequence: int) -> str:
    return f"LOCK-{mode}-{sequence:010d}"


def test_the_order_goes_on_where_the_number_turns_negative() -> None:
    """The server counts with 32 bits: behind 2147483647 comes -2147483648."""
    numbers = [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1]
    names = [node("EXCLUSIVE", number) for number in numbers]
    assert [found.name for found in lock_nodes(reversed(names))] == names
    nodes = lock_nodes(names)
    assert nodes[0].before(nodes[3])
    assert not nodes[3].before(nodes[0])
    assert not nodes[1].before(nodes[1])
    assert [found.sequence for found in lock_nodes([node("SHARED", -1), node("SHARED", 0)])] == [-1, 0]


@pytest.mark.parametrize(
    "mine, expected",
    [
        (("SHARED", 1), None),  # next to a reader
        (("EXCLUSIVE", 2), 1),  # the nearest, not the first
        (("SHARED", 4), 2),  # readers do not block a reader
        (("EXCLUSIVE", 5), 4),
        (("SHARED", 6), 5),
    ],
)
def test_whom_a_request_waits_for(mine: tuple[str, int], expected: int | None) -> None:
    modes = ["SHARED", "SHARED", "EXCLUSIVE", "SHARED", "SHARED", "EXCLUSIVE", "SHARED"]
    queue = lock_nodes([node(mode, number) for number, mode in enumerate(modes)] + ["day=1", "LOCK-OTHER-0000000001"])
    own = LockNode.parse(node(*mine))
    assert own is not None
    before = nearest_before(own, queue)
    assert (before.sequence if before else None) == expected


def test_hives_third_mode_is_granted_with_readers_and_not_with_x() -> None:
    queue = lock_nodes([node("SEMI_SHARED", 0), node("SHARED", 1), node("EXCLUSIVE", 2)])
    blockers = [nearest_before(own, queue) for own in queue]
    assert [before and before.sequence for before in blockers] == [None, None, 1]


# Requests that are too large for one step.


def test_a_large_request_is_cut_in_its_order() -> None:
    wanted = asked(*((X, f"db/t/day={number:05d}") for number in range(5000)))
    cut = list(chunks(HIVE, wanted, data_size=80, acl_size=31, limit=100_000))
    assert [lock for chunk in cut for lock in chunk] == list(wanted.locks)
    assert len(cut) > 5
    for chunk in cut:
        # What the server receives for them at least: each path twice, as a lock and as a parent, and the data.
        sent = sum(2 * len(HIVE.resource(OPERATION, resource)) + 80 for resource, _ in chunk)
        assert sent < 100_000


@given(st.lists(st.integers(1, 300)), st.integers(1, 1000))
def test_no_packet_is_larger_than_it_may_be_unless_it_has_one_item(sizes: list[int], limit: int) -> None:
    cut = [sizes[part] for part in packets(sizes, limit)]
    assert [size for part in cut for size in part] == sizes
    assert all(part and (sum(part) <= limit or len(part) == 1) for part in cut)
    assert all(sum(part) + following[0] > limit for part, following in pairwise(cut))


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 50, 2000])
def test_the_parents_that_a_part_may_have_to_create_are_counted(depth: int, length: int) -> None:
    """Each partition has parents of its own, and all of them are missing."""
    wanted = asked(*((X, f"db/t/{'/'.join(f'{n}=é{n}' + 'v' * length for _ in range(depth))}") for n in range(300)))
    limit = 50_000
    cut = list(chunks(HIVE, wanted, data_size=80, acl_size=31, limit=limit))
    assert tuple(lock for chunk in cut for lock in chunk) == wanted.locks
    there: set[str] = set()
    for chunk in cut:
        locks = [HIVE.lock(OPERATION, resource, mode) for resource, mode in chunk]
        parents = {one for path in locks for one in ancestors(path)}
        assert sum(len(path.encode()) for path in {*locks, *parents - there}) < limit or len(chunk) == 1
        there |= parents


@pytest.mark.parametrize("length", [1, 100, 1300, 900_000])
def test_what_is_read_or_deleted_together_fits_into_a_packet(length: int) -> None:
    paths = [f"/{number}é{'v' * length}" for number in range(1500 if length < 900_000 else 3)]
    cut = [paths[part] for part in bunches(paths)]
    assert [path for part in cut for path in part] == paths
    for part in cut:
        assert len(part) <= 1000
        assert sum(len(path.encode()) for path in part) < 2**20
    assert [] == bunches([])


def test_a_small_request_is_not_cut() -> None:
    wanted = asked((X, "db/t/day=1"))
    assert list(chunks(HIVE, wanted, data_size=80, acl_size=31)) == [wanted.locks]


# Access.


def test_servers_get_the_port_that_they_do_not_name() -> None:
    assert EnsembleAccess(hosts="a, b:2182,[::1]/c/d/", client_port=2999).addresses == "a:2999,b:2182,[::1]:2999/c/d"


@pytest.mark.parametrize("hosts", ["", ",", "a,,b", "zk://a:2181", "sqlite:///x.db", "a:port", "a b:2181"])
def test_a_wrong_connect_string_is_refused_at_once(hosts: str) -> None:
    with pytest.raises(ConfigError, match=r"lock\.uri"):
        EnsembleAccess(hosts=hosts)


def test_nodes_are_open_only_where_nobody_says_who_he_is() -> None:
    assert EnsembleAccess(hosts="a").rights == [Right("world", "anyone", ALL)]
    assert EnsembleAccess(hosts="a", auth="digest", user="u", password="p").rights == [Right("auth", "", ALL)]
    both = EnsembleAccess(hosts="a", auth="digest", user="u", password="p", acl="sasl:etl:cdrwa, digest:v:h=:r")
    assert both.rights == [Right("auth", "", ALL), Right("sasl", "etl", ALL), Right("digest", "v:h=", 1)]
    assert EnsembleAccess(hosts="a", acl="ip:10.0.0.0/8:cdrwa").rights == [Right("ip", "10.0.0.0/8", ALL)]


@pytest.mark.parametrize(
    "settings, key",
    [
        ({"auth": "digest"}, r"lock\.zk\.auth"),
        ({"auth": "digest", "user": "u"}, r"lock\.zk\.auth"),
        ({"acl": "everybody"}, r"lock\.zk\.acl"),
        ({"acl": "sasl:etl:all"}, r"lock\.zk\.acl"),
        ({"tls": True, "tls_ca": "no-such.pem"}, r"lock\.zk\.tls-ca"),
    ],
)
def test_access_that_can_not_work_is_refused(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        EnsembleAccess(hosts="a", **settings)  # type: ignore[arg-type]
