"""Random programs of clients that commit late, twice and out of order, and a plain model of what must become of them.

The model shares no code with the product: a snapshot is a parent and the rows that it adds or removes, a branch is the
id of a snapshot.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import LongType

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.iceberg.metadata import sequence_number
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Server, ids
from tests.rest.landed import Landed

Name = tuple[str, str]

_KINDS = ("overwrite", "labelled", "fork", "staged", "replace")
_JOB, _CHECKPOINT = "flink.job-id", "flink.max-committed-checkpoint-id"
_OFFSETS = "kafka.connect.offsets.control.group"


@dataclass(frozen=True, slots=True)
class _Snapshot:
    parent: int | None
    added: tuple[int, ...] = ()
    removed: int | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    """What must be in the table."""

    snapshots: dict[int, _Snapshot] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    last_number: int = 0

    def lineage(self, snapshot_id: int | None) -> Iterator[_Snapshot]:
        """Yield a snapshot and its ancestors, newest first."""
        while snapshot_id is not None:
            found = self.snapshots[snapshot_id]
            yield found
            snapshot_id = found.parent

    def rows(self, branch: str) -> list[int]:
        """Return the rows of a branch, sorted."""
        rows: Counter[int] = Counter()
        for snapshot in reversed(list(self.lineage(self.heads.get(branch)))):
            rows.update(snapshot.added)
            if snapshot.removed is not None:
                del rows[snapshot.removed]
        return sorted(rows.elements())

    def last(self, key: str, snapshot_id: int | None) -> str | None:
        """Return what the newest snapshot that says something at *key* says."""
        return next((s.properties[key] for s in self.lineage(snapshot_id) if key in s.properties), None)


@dataclass(slots=True)
class _Late:
    """A commit that was written, and what it is."""

    held: Held
    kind: str
    branch: str | None
    rows: tuple[int, ...]
    headers: dict[str, str]
    declared: bool
    properties: dict[str, str]

    @property
    def parent(self) -> int | None:
        return self.held.snapshot.get("parent-snapshot-id")


class Program:
    """One program, on a table of its own.

    Args:
        seed: Draws it.
        server: Serves the table.
        catalog: The same catalog, through the library.
        name: Of the table.
    """

    def __init__(self, seed: int, server: Server, catalog: CoordinatedCatalog, name: Name) -> None:
        self._chance = random.Random(seed)
        self._server, self._catalog, self._name = server, catalog, name
        self._clients: list[RestCatalog] = [server.client() for _ in range(3)]
        self._clients[0].create_table(name, SCHEMA, properties={"commit.manifest.min-count-to-merge": "2"})
        self._handles: list[Any] = [client.load_table(name) for client in self._clients]
        self._model = Model()
        self._late: list[_Late] = []
        self._landed = Landed()
        self._next = 0
        self._log: list[str] = []
        self.landed = self.rebased = self.refused = 0

    def run(self, steps: int) -> None:
        """Run it; raise AssertionError where the table is not what it must be."""
        choices = {
            self._prepare: 8,
            self._send: 8,
            self._refresh: 3,
            self._append_in_library: 2,
            self._delete_in_library: 1,
            self._merge_or_not: 1,
            self._evolve: 1,
            self._repartition: 1,
            self._roll_back: 1,
        }
        for _ in range(steps):
            step = self._chance.choices(list(choices), list(choices.values()))[0]
            step()
        while self._late:
            self._send()
        self._check()

    # Steps.

    def _prepare(self) -> None:
        chance, table = self._chance, self._chance.choice(self._handles)
        kind = chance.choice(["fast_append", "fast_append", "merge_append", *_KINDS])
        branch: str | None = chance.choice(list(table.refs()) or ["main"])
        properties: dict[str, str] = {}
        match chance.choice(["plain", "plain", "flink", "kafka"]) if kind != "replace" else "plain":
            case "flink":
                properties = {_JOB: chance.choice("ab"), _CHECKPOINT: str(chance.randrange(1, 6))}
            case "kafka":
                properties = {_OFFSETS: f'{{"0":{chance.randrange(1000)}}}'}
        headers, said, declared = self._declaration(kind)
        rows = tuple(range(self._next, self._next + chance.choice([1, 1, 2])))
        self._next += len(rows)
        if kind == "replace":
            self._late.append(_Late(Held.replacement(table, ids(*rows)), kind, "main", rows, headers, declared, {}))
            self._note("writes", len(self._late) - 1, kind, rows)
            return
        if kind == "staged":
            branch = None
        maker = {"labelled": "overwrite", "fork": "fast_append", "staged": "fast_append"}.get(kind, kind)
        held = Held.append(table, ids(*rows), kind=maker, branch=branch, properties={**properties, **said})
        if kind == "labelled":
            held.as_append()
        if kind == "fork":
            branch = f"b{chance.randrange(3)}"
            held.to_new_branch(branch)
        self._late.append(_Late(held, kind, branch, rows, headers, declared, properties))
        self._note("writes", len(self._late) - 1, kind, branch, rows, properties, "declared" if declared else "")

    def _declaration(self, kind: str) -> tuple[dict[str, str], dict[str, str], bool]:
        if kind == "labelled":  # a client that declares this says what is not so
            return {}, {}, False
        match self._chance.choice(["no", "header", "property", "both", "recalled"]):
            case "header":
                return BLIND, {}, True
            case "property":
                return {}, {"commit-coord.append": "blind"}, True
            case "both":
                return BLIND, {"commit-coord.append": "blind"}, True
            case "recalled":
                return BLIND, {"commit-coord.append": "checked"}, False
        return {}, {}, False

    def _send(self) -> None:
        if not self._late:
            return
        number = self._chance.randrange(len(self._late))
        late = self._late[number]
        expected, lands = self._expected(late)
        answer = late.held.send(self._server, late.headers)
        self._note("sends", number, "expects", expected, "gets", answer.status)
        assert expected == answer.status, self._story(answer.json)
        if lands:
            self._land(late)
        if self._chance.random() < 0.7:
            del self._late[number]
        self._check()

    def _expected(self, late: _Late) -> tuple[int, bool]:
        """Return the status that must be answered, and whether the rows land by it."""
        model, branch = self._model, late.branch
        if late.held.snapshot_id in model.snapshots:
            return 200, False
        if late.kind == "replace":
            # It would take out of main the rows that came since it found the table empty.
            leaves_rows = "main" in model.heads and late.held.found_no_rows and late.headers != BLIND
            return (200, True) if self._gave_no_ids_since(late) and not leaves_rows else (409, False)
        head = None if branch is None else model.heads.get(branch, model.heads.get("main"))
        if branch is not None and _JOB in late.properties:
            job, checkpoint = late.properties[_JOB], int(late.properties[_CHECKPOINT])
            for found in model.lineage(head):
                if found.properties.get(_JOB) == job and int(found.properties[_CHECKPOINT]) >= checkpoint:
                    return 409, False
        moved = late.parent != head and model.last(_OFFSETS, late.parent) != model.last(_OFFSETS, head)
        stale_stream = branch is not None and _OFFSETS in late.properties and moved
        refused = 400 if stale_stream else 409
        # An overwrite of an empty table is labelled an append by PyIceberg, too.
        appends = late.held.snapshot["summary"]["operation"] == "append" and late.kind not in ("fork", "staged")
        blind = late.declared and appends
        if blind and (branch in model.heads or branch == "main"):
            return (400, False) if stale_stream else (200, True)
        if branch is not None:
            there = model.heads.get(branch)
            if there != (None if late.kind == "fork" else late.parent):
                return refused, False
        if late.parent is not None and late.held.snapshot["sequence-number"] <= model.last_number:
            return refused, False
        return 200, True

    def _gave_no_ids_since(self, late: _Late) -> bool:
        metadata = self._clients[0].load_table(self._name).metadata
        _, columns, fields = late.held.document["requirements"]
        return (columns["last-assigned-field-id"], fields["last-assigned-partition-id"]) == (
            metadata.last_column_id,
            metadata.last_partition_id,
        )

    def _land(self, late: _Late) -> None:
        model = self._model
        # What replaces the rows of an empty table, and is declared an append, follows what came since.
        stays = late.kind in ("fork", "staged") or (late.kind == "replace" and not late.held.found_no_rows)
        parent = late.parent if stays or late.branch is None else model.heads.get(late.branch)
        self.landed += 1
        self.rebased += parent != late.parent
        model.snapshots[late.held.snapshot_id] = _Snapshot(parent, late.rows, properties=late.properties)
        if late.branch is not None:
            model.heads[late.branch] = late.held.snapshot_id
        found = self._clients[0].load_table(self._name).metadata
        landed = found.snapshot_by_id(late.held.snapshot_id)
        assert landed is not None, self._story("the snapshot is not there")
        assert landed.parent_snapshot_id == parent, self._story("another parent")
        model.last_number = sequence_number(found)

    def _refresh(self) -> None:
        number = self._chance.randrange(len(self._handles))
        self._handles[number] = self._clients[number].load_table(self._name)
        self._note("refreshes", number)

    def _append_in_library(self) -> None:
        row, self._next = self._next, self._next + 1
        self._catalog.load_table(self._name).append(ids(row))
        self._added_in_library(_Snapshot(self._model.heads.get("main"), (row,)))

    def _delete_in_library(self) -> None:
        rows = self._model.rows("main")
        if rows:
            row = self._chance.choice(rows)
            self._catalog.load_table(self._name).delete(f"id == {row}")
            self._added_in_library(_Snapshot(self._model.heads.get("main"), removed=row))

    def _added_in_library(self, snapshot: _Snapshot) -> None:
        metadata = self._catalog.load_table(self._name).metadata
        head = metadata.refs["main"].snapshot_id
        self._model.snapshots[head] = snapshot
        self._model.heads["main"] = head
        self._model.last_number = sequence_number(metadata)
        self._note("library", snapshot)
        self._check()

    def _merge_or_not(self) -> None:
        table = self._clients[0].load_table(self._name)
        key = "commit.manifest-merge.enabled"
        with table.transaction() as tx:
            tx.set_properties({key: "false" if table.properties.get(key) == "true" else "true"})
        self._note("merges or not")

    def _evolve(self) -> None:
        with self._clients[0].load_table(self._name).update_schema() as update:
            update.add_column(f"c{self._chance.randrange(10**9)}", LongType())
        self._note("adds a column")

    def _repartition(self) -> None:
        table = self._clients[0].load_table(self._name)
        with table.update_spec() as update:
            if table.spec().fields:
                update.remove_field(table.spec().fields[0].name)
            else:
                update.add_identity("s")
        self._note("repartitions")

    def _roll_back(self) -> None:
        model, head = self._model, self._model.heads.get("main")
        ancestors = []
        while head is not None:
            ancestors.append(head)
            head = model.snapshots[head].parent
        if len(ancestors) > 1:
            model.heads["main"] = self._chance.choice(ancestors[1:])
            table = self._clients[0].load_table(self._name)
            table.manage_snapshots().rollback_to_snapshot(model.heads["main"]).commit()
            self._note("rolls back to", model.rows("main"))
            self._check()

    # What must be so.

    def _check(self) -> None:
        table = self._clients[0].load_table(self._name)
        self._landed.check(table.metadata_location)
        assert {name: ref.snapshot_id for name, ref in table.refs().items()} == self._model.heads, self._story("refs")
        assert self._model.snapshots.keys() == {s.snapshot_id for s in table.metadata.snapshots}, self._story("ids")
        for branch in self._model.heads:
            found = sorted(table.scan(selected_fields=("id",)).use_ref(branch).to_arrow()["id"].to_pylist())
            assert self._model.rows(branch) == found, self._story(f"rows of {branch}: {found}")
            summary = table.snapshot_by_name(branch).summary
            assert str(len(found)) == summary["total-records"], self._story(f"totals of {branch}: {summary}")

    def _note(self, *said: object) -> None:
        self._log.append(" ".join(map(str, said)))

    def _story(self, fault: object) -> str:
        return "\n".join((*self._log, f"fault: {fault}"))
