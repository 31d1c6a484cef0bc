"""Performs programs against real clients on one table, and holds each step against the model.

Clients ``a`` and ``b`` have catalogs of their own on one SQLite database, ``s`` is PyIceberg's. Each keeps the table as
it saw it last until it looks again. After each step:

* It was refused: the table is as before, the error says so in words, and the refusal was justified: the model says why,
  or PyIceberg refuses the same on the same table.
* It landed: the table is one of the states that the model allows, for our own look at the files and for each reader.
* The metadata fits the files, and every new file is reachable.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import UUIDType

from commit_coord.errors import CommitConflict, CommitCoordError, CommitStateUnknown, LockError
from commit_coord.testing.table_files import metadata, observed
from commit_coord.testing.table_files.observed import Files, Observed
from commit_coord.testing.table_files.state import State, paths
from commit_coord.testing.table_files.values import MAIN, complete
from tests.proof.rows.clients import OURS, Clients, quiet
from tests.proof.rows.differences import difference
from tests.proof.rows.doing import NAMESPACE, settle
from tests.proof.rows.draw.evolutions import View
from tests.proof.rows.findings import ALONE, Finding, Spoilt, in_words
from tests.proof.rows.leftovers import Leftovers
from tests.proof.rows.model.conditions import Always, Where
from tests.proof.rows.model.meaning import meaning
from tests.proof.rows.model.operations import (
    OURS_ALONE,
    AddFiles,
    AppendToNeighbour,
    CommitFiles,
    Expected,
    Expire,
    ExpireOne,
    Operation,
    Orphans,
    Race,
    Recreate,
    Refresh,
    Require,
    Single,
    Upsert,
    WriteFiles,
    is_fresh,
)
from tests.proof.rows.model.row_changes import has_null, same_kinds
from tests.proof.rows.model.spellings import spelled
from tests.proof.rows.model.table_statements import SqlExpire, SqlInsertPartition
from tests.proof.rows.neighbours import Neighbour
from tests.proof.rows.program import Look, Program
from tests.proof.rows.reading import read_with_all, telling
from tests.proof.rows.snapshots_left import fault_of_expiry
from tests.proof.rows.stock import stock_error
from tests.proof.rows.written_files import WrittenFiles

_numbers = itertools.count(1)

_READ_EACH = 3
"""So many steps; the files are judged after each, and what is wrong for readers alone mostly stays so."""

_METADATA = "metadata: "


def _lands_under_no_name(one: Single, other: Single) -> bool:
    """Return whether *other* commits the files of *one* under no request id, which no request id can find out."""
    return (
        isinstance(one, CommitFiles)
        and isinstance(other, CommitFiles)
        and (one.slot, one.named, other.named) == (other.slot, True, False)
    )


# The run.


@dataclass
class Run:
    """One program on one table of its own.

    Args:
        clients: Who does it.
        program: What is done.
        counts: Learns what was exercised.
    """

    clients: Clients
    program: Program
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Make the table."""
        self.name = f"t{next(_numbers)}"
        self.files = Files()
        self.folder = self.clients.folder / self.name
        self.folder.mkdir()
        self.doing = self.clients.doing(self.folder, self.files)
        self.written = WrittenFiles(self.doing)
        self.states: dict[str, State] = {}
        self.leftovers = Leftovers()
        self.depth = 0
        self.nested: Exception | None = None
        self.steps = 0
        self.unread = False
        self.handles: dict[str, Table] = {}
        self.root = self.clients.folder / "warehouse" / NAMESPACE / self.name
        place = self.root / "i" if self.program.neighbour == "around" else self.root
        # What is edited, our catalogs must not have seen: they know that metadata files don't change.
        _create(self.name, self.program, place, self.clients.catalogs["a" if self.program.version <= 2 else "s"])
        for name, catalog in self.clients.catalogs.items():
            self.handles[name] = catalog.load_table((NAMESPACE, self.name))
        self.head = self._seen()
        self.states[self.head.location] = self.head.state
        self.neighbour: Neighbour | None = None
        if self.program.neighbour:
            self.neighbour = Neighbour(self.clients.catalogs, self.program.neighbour, place, self.name)
            self.leftovers.allow(self.neighbour.grow("s"))
        for what in ("spelling", "neighbour"):
            if value := getattr(self.program, what):
                self.counts[f"{what} of a table: {value}"] += 1
        self.counts["with a column of UUIDs"] += any(isinstance(f.field_type, UUIDType) for f in self.program.columns)
        self._judge_files(None)

    @property
    def state(self) -> State:
        """Return the table as it is."""
        return self.states[self.head.location]

    def view(self) -> View:
        """Return what the next step is drawn from."""
        located = self.written.located(self.state.uuid)
        return View(self.state, self.base, self.written.slots, located, neighbour=self.neighbour is not None)

    def base(self, client: str) -> State:
        """Return the table as *client* sees it."""
        location: str = self.handles[client].metadata_location
        return self.states[location]

    def _seen(self) -> Observed:
        location = self.clients.pointer(self.name)
        if location is None:
            raise Finding("gone", "the table is not in the catalog")
        return Observed(location, self.files)

    def close(self) -> None:
        """Leave nothing behind."""
        with suppress(Exception):
            self.clients.catalogs["s"].drop_table((NAMESPACE, self.name))
        if self.neighbour is not None:
            self.neighbour.close()
        for path in (self.folder, self.root):
            shutil.rmtree(path, ignore_errors=True)

    # One step.

    def step(self, operation: Operation | Look) -> None:
        """Do *operation* and judge what came of it.

        Raises:
            Finding: It is wrong.
        """
        if isinstance(operation, Look):
            self._look(operation.where)
            return
        race = operation if isinstance(operation, Race) else None
        one: Single = race.one if race is not None else operation  # type: ignore[assignment]
        if isinstance(one, CommitFiles) and not self.written.can_be_committed(one, self.base(one.client)):
            return
        self.steps += 1
        if self.is_stock(one) and self.head.location != self.handles[one.client].metadata_location:
            self.finish()  # what its late commit breaks is distinguished from what was broken before
        before = self.state
        base = before if is_fresh(one) or isinstance(one, Orphans) else self.base(one.client)
        self.written.begin(one, base)
        start = self.head
        with self._racing(race):
            heard = Counter(self.clients.refused)
            error = self._do(one)
        if self.nested is not None:
            found, self.nested = self.nested, None
            raise found
        if isinstance(error, CommitConflict) and one.client in OURS and self.clients.refused is not None:
            self._judge_events(one, error, self.clients.refused - heard)
        self._judge(one, base, before, error)
        if isinstance(one, SqlExpire) and error is None and (wrong := fault_of_expiry(one, start, self.head)):
            raise Finding("SqlExpire took others", f"{one}: {wrong}")
        if self.neighbour is not None:
            self.neighbour.judge()

    def is_stock(self, operation: Operation) -> bool:
        """Return whether PyIceberg alone does *operation*."""
        return operation.client == "s"

    def _do(self, operation: Single) -> Exception | None:
        table = self.handles[operation.client]
        if is_fresh(operation):
            table = self.clients.catalogs[operation.client].load_table((NAMESPACE, self.name))
        try:
            with quiet():
                if isinstance(operation, Recreate):
                    self._recreate(operation.client, purge=operation.purge)
                elif isinstance(operation, AppendToNeighbour):
                    if self.neighbour is not None:
                        self.leftovers.allow(self.neighbour.grow(operation.client))
                else:
                    self.doing(operation, table)
        except Exception as error:  # noqa: BLE001 - each is judged
            return error
        return None

    def _recreate(self, client: str, *, purge: bool) -> None:
        catalog, name = self.clients.catalogs[client], (NAMESPACE, self.name)
        old = catalog.load_table(name)
        self.doing.dropped.add(self._seen().raw["table-uuid"])
        (catalog.purge_table if purge else catalog.drop_table)(name)
        self.handles[client] = catalog.create_table(
            name,
            old.schema(),
            location=old.location(),
            partition_spec=old.spec(),
            properties={**old.properties, "format-version": str(old.format_version)},
        )

    @contextmanager
    def _racing(self, race: Race | None) -> Iterator[None]:
        """Do what others do right before the commit of what is done inside."""
        if race is None:
            yield
            return
        others = [other for other in race.others if not _lands_under_no_name(race.one, other)]
        catalog = self.clients.catalogs[race.client]
        owner, name = (catalog, "commit_table") if self.is_stock(race) else (catalog.coordinator, "commit")
        real: Callable[..., Any] = getattr(owner, name)
        busy = [race.client]

        def meanwhile(left: int = 0) -> None:
            self.depth += 1
            try:
                # Not between the calls of a transaction of the same client: what it commits, the transaction has seen.
                while len(others) > left and others[0].client not in busy:
                    busy.append(others[0].client)
                    self.step(others.pop(0))
                    busy.pop()
            except Exception as found:  # noqa: BLE001 - none of the product's: it must not seem to come from there
                self.nested = self.nested or found
                others.clear()
            finally:
                self.depth -= 1

        def commit(*args: Any, **kwargs: Any) -> Any:
            if race.again and len(others) > 1 and (replan := kwargs.get("replan")):
                meanwhile(1)

                def planned(*about: Any) -> Any:
                    made = replan(*about)
                    meanwhile()
                    return made

                return real(*args, **{**kwargs, "replan": planned})
            meanwhile()
            return real(*args, **kwargs)

        setattr(owner, name, commit)
        self.doing.between, before = meanwhile if race.early else self.doing.between, self.doing.between
        try:
            yield
        finally:
            delattr(owner, name)
            self.doing.between = before

    # Judgement.

    def _judge_events(self, operation: Single, error: CommitConflict, refused: Counter[str]) -> None:
        """Raise unless the events say once that the commit was refused; metrics and alerts count them."""
        if (heard := refused[error.details.get("request_id", "")]) != 1:
            kind = f"{type(operation).__name__} refused with {heard} events"
            raise Finding(kind, f"{operation}: {error}")

    def _judge(self, operation: Single, base: State, before: State, error: Exception | None) -> None:
        head, kind = self.state, type(operation).__name__
        old = self.head
        if isinstance(operation, Recreate) and error and in_words(error) and self.clients.pointer(self.name) is None:
            raise Spoilt(f"the table was dropped, and one like it is refused: {error}")
        try:
            self.head = self._seen()
            now = self.head.state
        except Finding:
            raise
        except Exception as reason:
            raise Finding(f"{kind} unreadable", f"{operation}: {type(reason).__name__}: {reason}") from reason
        self._count(operation, base is not head, error, changed=self.head.location != old.location)
        expected = meaning(operation, base, head, self.written.slots)
        asks = not self.is_stock(operation) and self.head.location != old.location
        if isinstance(operation, Expire | ExpireOne) and not expected.states and not asks:
            expected = Expected((head,), expected.refusable)  # PyIceberg does not ask; nor do we, for no snapshot
        expected = self.written.expected(operation, expected, base, head, old, error)
        if isinstance(operation, SqlInsertPartition) and error is None and not same_kinds(base, head):
            raise Spoilt("a text in a statement is the value of a column of another type")
        if isinstance(operation, Orphans) and self.neighbour is not None and self.neighbour.forbids_orphans:
            expected = Expected((), "files of another table lie in its folder")
        if error is None:
            # PyIceberg's retries check less than ours; what its late clients may do is its own affair.
            if not self.is_stock(operation) or base is head:
                self._judge_landed(operation, expected, now, head)
        else:
            self._judge_refused(operation, base, head, now, expected, error)
        late = self.is_stock(operation) and base is not head
        if late and not _complete(now):
            raise Spoilt("a late client left a required value out, or gave a column the id of another one")
        if isinstance(operation, Require) and not all(complete(row, now.fields) for row in now.of()):
            raise Spoilt("a column became required that holds NULL")
        added = self.is_stock(operation) and isinstance(operation, AddFiles) and operation.rows and error is None
        if added and any(now.mapping.get(path) != key for path, key in paths(now.fields)):
            raise Spoilt("files were added whose columns are not in the name mapping, which a late client had made")
        self.states[self.head.location] = now
        if isinstance(operation, WriteFiles) and error is None:
            written = self.written.keep(operation, self.base(operation.client))
            self.leftovers.allow(observed.local(file.file_path) for file in written)
        if isinstance(operation, Orphans) and error is None:
            self.written.slots.clear()  # nothing refers to these files
            if missing := [path for path in metadata.reachable(self.head) if not os.path.exists(path)]:
                raise Finding("Orphans took live files", ", ".join(map(os.path.basename, missing)))
        if self.is_stock(operation) or isinstance(operation, WriteFiles):
            if error is not None:
                settle()
            self.leftovers.new(self.head)  # PyIceberg's own are known from now on
        if self.head.location != old.location:
            try:
                self._judge_files(old)
                self.unread = True
                late = self.is_stock(operation) and base is not head
                if late or self.steps % _READ_EACH == 0:
                    self.finish()
            except Finding as found:
                if self.is_stock(operation) and base is not head:
                    raise Spoilt(str(found)) from found
                if self.is_stock(operation) and found.kind.startswith(_METADATA):
                    raise Finding(ALONE + found.kind, found.text) from found
                raise
        elif self.depth == 0:
            self._judge_leaks(kind)

    def _count(self, operation: Single, late: bool, error: Exception | None, *, changed: bool) -> None:
        """Count what was done: how it ended, and whether its client saw the table as it was."""
        end = "refused" if error is not None else "landed" if changed else "had nothing to do"
        if isinstance(operation, Upsert) and has_null(operation.rows, operation.keys):
            self.counts[f"Upsert with a NULL key {end}"] += 1
        self.counts[f"{type(operation).__name__} {end}"] += 1
        self.counts[f"{'on an old table' if late else 'on the table as it is'}: {end}"] += 1

    def _judge_landed(self, operation: Single, expected: Expected, now: State, head: State) -> None:
        kind, by = type(operation).__name__, ALONE if self.is_stock(operation) else ""
        if not expected.states:
            raise Finding(f"{by}{kind} landed", f"{operation} must not land: {expected.refusable}")
        found = [difference(state, now, head) for state in expected.states]
        if all(found):
            raise Finding(f"{by}{kind} wrong", f"{operation}: {min(map(str, found), key=len)}")

    def _judge_refused(
        self, operation: Single, base: State, head: State, now: State, expected: Expected, error: Exception
    ) -> None:
        kind = type(operation).__name__
        message = f"{type(error).__name__}: {error}"
        if found := difference(head, now, head):
            raise Finding(f"{kind} refused but landed", f"{operation} raised {message}; {found}")
        if self.is_stock(operation) or isinstance(operation, WriteFiles | Refresh):
            return
        if isinstance(error, CommitStateUnknown):
            raise Finding(f"{kind} unknown", f"{operation}: {message}") from error
        if self.depth and isinstance(error, LockError | CommitCoordError) and "lock" in str(error):
            return  # who is raced holds locks
        if not in_words(error) and stock_error(operation, self.head, self.folder) != type(error).__name__:
            raise Finding(f"{kind} raw {type(error).__name__}", f"{operation} raised {message}") from error
        if not all(complete(row, head.fields) for row in head.rows.get(MAIN, ())):
            return  # a late PyIceberg client left a required value out: nobody can write that row anew
        if base is not head and isinstance(error, CommitConflict) and "a file is gone" in message:
            return  # its snapshot was expired, and the files with it
        if not expected.states or expected.refusable:
            return
        # PyIceberg's upsert trips over columns that have changed since the last snapshot, and ours must not.
        anew = isinstance(operation, Upsert)
        if isinstance(operation, OURS_ALONE) or not stock_error(operation, self.head, self.folder, anew=anew):
            raise Finding(f"{kind} refused", f"{operation} must land, and was refused: {message}") from error
        self.counts[f"refused, as by PyIceberg alone: {kind}"] += 1

    # Files.

    def _judge_files(self, old: Observed | None) -> None:
        self.leftovers.refer(self.head)
        for fault in metadata.faults(self.head, old):
            raise Finding(_METADATA + fault.split(":")[0], fault)
        if self.depth == 0:
            self._judge_leaks("")

    def _judge_leaks(self, kind: str) -> None:
        if leaked := self.leftovers.new(self.head):
            raise Finding(f"{kind} leak".strip(), ", ".join(sorted(os.path.basename(path) for path in leaked)))

    # Readers.

    def end(self) -> None:
        """Read the table for the last time, also with a condition on each column that tells some rows from others.

        Raises:
            Finding: A reader does not find the rows.
        """
        self.finish()
        for where in telling(self.state):
            self._look(where)
        if self.neighbour is not None:
            self.neighbour.read()

    def finish(self) -> None:
        """Read the whole table with every reader, if it has changed since that was done.

        Raises:
            Finding: One does not find the rows.
        """
        if self.unread:
            self.unread = False
            self._look(Always())

    def _look(self, where: Where) -> None:
        read_with_all(self.head, self.state, where, self.counts)


def _create(name: str, program: Program, place: Path, catalog: Any) -> None:
    fields = [
        PartitionField(part.source, 1000 + number, parse_transform(part.transform), part.name)
        for number, part in enumerate(program.spec)
    ]
    version = str(min(program.version, 2))  # of a newer one PyIceberg makes none
    made = catalog.create_table(
        (NAMESPACE, name),
        Schema(*program.columns),
        location=spelled(str(place), program.spelling) if program.spelling or program.neighbour else None,
        partition_spec=PartitionSpec(*fields),
        properties={"format-version": version, "commit.retry.min-wait-ms": "1", **program.properties},
    )
    if program.version > 2:
        path = Path(observed.local(made.metadata_location))
        path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0}))


def _complete(state: State) -> bool:
    """Return whether each row has what the columns require, and values of their types at all."""
    try:
        return all(complete(row, state.fields) for rows in state.rows.values() for row in rows)
    except (TypeError, ValueError):  # a map where a number is
        return False
