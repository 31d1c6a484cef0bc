"""What the page shows of the locks, and in which order."""

from __future__ import annotations

from dataclasses import replace

from commit_coord.model import Generation, LockEntry, LockMode, LockScope, LockState, Owner, Resource
from commit_coord.ui.now import PAGE_SIZE, Now, commit_of, now
from commit_coord.ui.recent import percentile
from commit_coord.ui.tables import bars

ANN = Owner(user="ann", host="a", pid=1, application="load.py", statement="nightly load", process="p1")


def entry(path: str, request: str, *, waits: str = "", at: int = 0, shared: bool = False) -> LockEntry:
    """Return a lock on *path* that waits for the request *waits*, if for any."""
    return LockEntry(
        resource=Resource.parse(path),
        mode=LockMode.SHARED if shared else LockMode.EXCLUSIVE,
        scope=LockScope.OPERATION,
        state=LockState.WAITING if waits else LockState.ACQUIRED,
        owner=ANN,
        request_id=request,
        generation=Generation(1),
        requested_at_ms=at,
        blocked_by=waits or None,
    )


def look(*entries: LockEntry, dead: str = "", wanted: str = "", page: int = 1) -> Now:
    """Return what the page shows of *entries*; the request *dead* has a dead owner."""
    return now(
        entries,
        at_ms=1000,
        cause_of_death=lambda one: "its process has ended" if one.request_id == dead else "",
        wanted=wanted,
        page=page,
    )


def requests(shown: Now) -> list[str]:
    """Return the request ids in the order in which they are shown."""
    return [row.entry.request_id for database in shown.databases for group in database.groups for row in group.rows]


def test_a_waiter_comes_behind_its_holder_and_names_the_holder() -> None:
    """The waiter's row has the owner of what it waits for, and the holder's row counts who waits."""
    shown = look(entry("db/t", "waiter", waits="holder", at=5), entry("db/t", "holder"))
    holder, waiter = shown.databases[0].groups[0].rows
    assert ("holder", 1, False) == (holder.entry.request_id, holder.behind, holder.waits)
    assert (ANN, True) == (waiter.blocker, waiter.waits)


def test_the_longest_wait_comes_first() -> None:
    """A database where a client waits comes before those where nobody waits, the longest wait first."""
    shown = look(
        entry("a/t", "quiet"),
        entry("b/t", "b1"),
        entry("b/t", "b2", waits="b1", at=20),
        entry("c/t", "c1"),
        entry("c/t", "c2", waits="c1", at=10),
    )
    assert ["c", "b", "a"] == [database.name for database in shown.databases]


def test_a_shared_lock_that_another_lock_implies_is_not_shown() -> None:
    """A lock on a partition holds a shared lock on the table; it is shown only where a client waits for it."""
    implied, partition = entry("db/t", "one", shared=True), entry("db/t/k=1", "one")
    assert ["db/t/k=1"] == [str(group.resource) for group in look(implied, partition).databases[0].groups]
    awaited = look(implied, partition, entry("db/t", "two", waits="one"))
    assert ["db/t", "db/t/k=1"] == [str(group.resource) for group in awaited.databases[0].groups]


def test_the_counts_are_those_of_all_locks() -> None:
    """Held and waiting locks are counted, and the requests of dead owners."""
    shown = look(entry("db/t", "a"), entry("db/t", "b", waits="a"), entry("db/u", "a"), dead="a")
    assert (2, 1, 1) == (shown.held, shown.waiting, shown.dead)


def test_a_page_has_a_bounded_number_of_locks() -> None:
    """However many there are, one page has a hundred; a page beyond the last one is the last one."""
    many = [entry(f"db/t{number:05}", f"r{number}") for number in range(PAGE_SIZE * 2 + 1)]
    assert PAGE_SIZE == len(requests(look(*many)))
    assert [f"r{PAGE_SIZE * 2}"] == requests(look(*many, page=9))
    assert 3 == look(*many).pages


def test_locks_are_found_by_table_owner_statement_and_request() -> None:
    """A part of each of them is enough, in small or large letters."""
    other = replace(ANN, user="bob", statement="compact")
    entries = entry("db/orders", "r1"), replace(entry("db/people", "r2"), owner=other)
    for wanted in ("PEOPLE", "db.people", "bob@", "compact", "r2"):
        assert ["r2"] == requests(look(*entries, wanted=wanted))
    assert [] == requests(look(*entries, wanted="nobody"))


def test_a_latch_names_its_commit() -> None:
    """Also where a metastore has cut off the statement; a lock of an operation, and too few letters, name none."""
    whole = "01234567-0123-4123-8123-0123456789ab"

    def named(statement: str, scope: LockScope = LockScope.COMMIT) -> str:
        return commit_of(replace(entry("db/t", "r"), scope=scope, owner=replace(ANN, statement=statement)))

    assert (whole, whole[:10]) == (named(f"commit {whole}"), named(f"commit {whole[:10]}"))
    assert ("", "") == (named(f"commit {whole[:7]}"), named("rename"))
    assert not named(f"commit {whole}", LockScope.OPERATION)


def test_percentiles_are_values_that_were_measured() -> None:
    """The smallest value that is large enough."""
    waits = [float(number) for number in range(1, 101)]
    assert (50.0, 99.0) == (percentile(waits, 50), percentile(waits, 99))
    assert (7.0, 7.0) == (percentile([7.0], 50), percentile([7.0], 99))


def test_commits_over_time_are_counted_in_equal_parts() -> None:
    """Each commit is in one bar, also if all came in the same millisecond."""
    assert [3] == [bar.count for bar in bars([5, 5, 5])]
    spread = bars([0, 10, 1000, 4799])
    assert 4 == sum(bar.count for bar in spread)
    assert 1 == len({bar.until_ms - bar.from_ms for bar in spread})
    assert [] == bars([])
