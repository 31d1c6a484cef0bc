"""Rounds in which two clients send at the same moment what both have written on the same head; no row may be wrong.

    python -m tests.rest.races --rounds 200 --programs 100
    python -m tests.rest.races --only wap

``make rest-programs`` runs all of it. The random programs are those of :mod:`tests.rest.programs`.
"""

from __future__ import annotations

import argparse
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from commit_coord.testing.table_files.metadata import faults_of_document
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Server, ids, path_of, row_ids, served
from tests.rest.landed import Landed
from tests.rest.programs import Name, Program

Sends = Callable[[], int]
"""Sends something, and returns the status of the answer."""

_NO_TURNS = "PYICEBERG_CATALOG__SHOP__COMMIT__RESERVED_TURN_MS"


@contextmanager
def racetrack() -> Iterator[Server]:
    """Yield a server that reserves no turns, because these clients do not come back; it has the namespace ``db``."""
    before = os.environ.get(_NO_TURNS)
    os.environ[_NO_TURNS] = "0"
    try:
        with served() as server:
            server.client().create_namespace("db")
            yield server
    finally:
        if before is None:
            del os.environ[_NO_TURNS]
        else:
            os.environ[_NO_TURNS] = before


class Race(ABC):
    """One kind of two commits that race, on a table of its own.

    Args:
        server: Serves the table.
        name: Of the table.
    """

    version = 2
    """Of the table's format."""

    def __init__(self, server: Server, name: Name) -> None:
        self.server, self.client, self.name = server, server.client(), name
        self.client.create_table(self.name, SCHEMA, properties={"format-version": str(self.version)})
        self.expected: list[int] = []
        """The rows that must be there."""
        self.landed = Landed()

    @property
    def table(self) -> Table:
        """The table as it is now."""
        found: Table = self.client.load_table(self.name)
        return found

    @abstractmethod
    def round(self, number: int) -> None:
        """Have two commits race; raise AssertionError if the wrong one is refused, or both, or none."""

    def check(self) -> None:
        """Raise AssertionError unless the rows of the table are those that must be there, and its files are right."""
        assert sorted(self.expected) == row_ids(self.table)
        self.landed.check(self.table.metadata_location)

    def sent(self, document: Any) -> Sends:
        """Return what sends a commit, of a client that declares all its appends to be blind."""
        return lambda: self.server.ask("POST", path_of(*self.name), document, BLIND).status

    def held(self, held: Held, headers: Mapping[str, str] | None = None) -> Sends:
        """Return what sends *held*."""
        return lambda: held.send(self.server, headers).status

    def at_once(self, *sends: Sends) -> list[int]:
        """Return the statuses of what is sent at the same moment."""
        start = Barrier(len(sends))

        def send(one: Sends) -> int:
            start.wait()
            return one()

        with ThreadPoolExecutor(len(sends)) as pool:
            return list(pool.map(send, sends))

    def one_lands(self, *sends: Sends, refusal: int = 409) -> int:
        """Return the number of the one that lands; the other one must be refused."""
        statuses = self.at_once(*sends)
        assert [200, refusal] == sorted(statuses, key=lambda status: status != 200), statuses
        return statuses.index(200)

    def count(self) -> None:
        """Raise AssertionError unless the totals of the table say how many rows must be there."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert str(len(self.expected)) == snapshot.summary["total-records"]


class Merges(Race):
    """Two insert-only ``MERGE`` of one key. The one that is refused reads the table again and finds the key."""

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        self.one_lands(*[self.held(Held.append(self.table, ids(number)).as_append()) for _ in range(2)])
        self.expected.append(number)
        self.count()


class Overwrites(Race):
    """Two overwrites of one key by a filter that matches nothing: both only add."""

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        table = self.table
        self.one_lands(*[self.held(Held.append(table, ids(number), kind="overwrite").as_append()) for _ in range(2)])
        self.expected.append(number)
        self.count()


class Flink(Race):
    """Two instances of a Flink job commit one checkpoint. They declare their appends to be blind."""

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        marks = {
            "flink.job-id": "job",
            "flink.operator-id": "operator",
            "flink.max-committed-checkpoint-id": str(number),
        }
        table = self.table
        both = [Held.append(table, ids(number), properties=marks) for _ in range(2)]
        late = Held.append(table, ids(number), properties=marks)
        self.one_lands(*[self.held(held, BLIND) for held in both])
        assert 409 == self.held(late, BLIND)()
        self.expected.append(number)
        self.count()


class Kafka(Race):
    """Two coordinators of Kafka Connect commit from the same offsets on. They declare their appends to be blind."""

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        offsets = {"kafka.connect.offsets.control.group": f'{{"0":{number}}}'}
        table = self.table
        both = [Held.append(table, ids(number), properties=offsets) for _ in range(2)]
        late = Held.append(table, ids(number), properties=offsets)
        self.one_lands(*[self.held(held, BLIND) for held in both], refusal=400)
        assert 400 == self.held(late, BLIND)()
        self.expected.append(number)
        self.count()


class Wap(Race):
    """Staged snapshots: two are staged, one is published twice, one is published while an append goes to main."""

    def __init__(self, server: Server, name: Name) -> None:
        super().__init__(server, name)
        self.table.append(ids(-1))
        self.expected.append(-1)

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        table, said = self.table, {"wap.id": str(number)}
        self.one_lands(
            *[self.held(Held.append(table, ids(number), branch=None, properties=said), BLIND) for _ in range(2)]
        )
        table, published = self.table, {"published-wap-id": str(number)}
        both = [Held.append(table, ids(number), properties=published) for _ in range(2)]
        self.one_lands(*[self.held(held, BLIND) for held in both])
        self.expected.append(number)
        self._publish_during_an_append(-2 - 2 * number, -3 - 2 * number)
        self.count()

    def _publish_during_an_append(self, staged_row: int, row: int) -> None:
        staged = Held.append(self.table, ids(staged_row), branch=None)
        assert 200 == self.held(staged, BLIND)()
        table = self.table
        head = table.current_snapshot()
        assert head is not None
        moves = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
        document = {
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head.snapshot_id}],
            "updates": [{**moves, "snapshot-id": staged.snapshot_id}],
        }
        statuses = self.at_once(self.sent(document), self.held(Held.append(table, ids(row)), BLIND))
        assert statuses in ([200, 200], [409, 200]), statuses
        self.expected += [staged_row, row] if statuses[0] == 200 else [row]


class Branches(Race):
    """Two clients fork one branch; then one appends to it while another one appends to main, both blind."""

    def __init__(self, server: Server, name: Name) -> None:
        super().__init__(server, name)
        self.table.append(ids(-1))
        self.expected.append(-1)

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        table, key = self.table, 3 * number
        forks = [Held.append(table, ids(key)).to_new_branch("audit") for _ in range(2)]
        self.one_lands(*[self.held(held, BLIND) for held in forks])
        table = self.table
        on_branch, on_main = Held.append(table, ids(key + 1), branch="audit"), Held.append(table, ids(key + 2))
        assert [200, 200] == self.at_once(self.held(on_branch, BLIND), self.held(on_main, BLIND))
        forked = [*self.expected, key, key + 1]
        self.expected.append(key + 2)
        self.count()
        branch = self.table.snapshot_by_name("audit")
        assert branch is not None
        assert branch.summary is not None
        assert str(len(forked)) == branch.summary["total-records"]
        if number % 20 == 0:
            found = self.table.scan(selected_fields=("id",)).use_ref("audit").to_arrow()["id"].to_pylist()
            assert sorted(forked) == sorted(found)
        self.table.manage_snapshots().remove_branch("audit").commit()


class Version3(Race):
    """Two appends to a table of version 3, both declared blind; each takes the next row ids."""

    version = 3
    _ROWS = 4

    def __init__(self, server: Server, name: Name) -> None:
        super().__init__(server, name)
        self.landed = Landed(faults_of_document)  # its snapshots have no files
        self._parent: int | None = None

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        snapshot_ids = [10 * (number + 1), 10 * (number + 1) + 1]
        landed = self.one_lands(*[self._append(snapshot_id, number) for snapshot_id in snapshot_ids])
        self._parent = snapshot_ids[landed]

    def _append(self, snapshot_id: int, number: int) -> Sends:
        snapshot = {
            "snapshot-id": snapshot_id,
            **({} if self._parent is None else {"parent-snapshot-id": self._parent}),
            "sequence-number": number + 1,
            "timestamp-ms": 1,
            "manifest-list": f"{self.server.folder}/list-{snapshot_id}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
            "first-row-id": number * self._ROWS,
            "added-rows": self._ROWS,
        }
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        document = {
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self._parent}],
            "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref],
        }
        return self.sent(document)

    def check(self) -> None:
        """Raise AssertionError unless each row id was given once."""
        metadata: Any = self.server.ask("GET", path_of(*self.name)).json["metadata"]
        self.landed.check(self.table.metadata_location)
        given = sorted(snapshot["first-row-id"] for snapshot in metadata["snapshots"])
        assert [number * self._ROWS for number in range(len(given))] == given
        assert len(given) * self._ROWS == metadata["next-row-id"]


class DroppedSpecs(Race):
    """An append under a partition spec that another client removes, as it is unused on the head that it saw.

    The removal requires what Java's does: nothing of main. The append is declared blind or not, and comes first, last
    or at the same moment; where it comes last, another spec may have got the id.
    """

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        with self.table.update_spec() as update:
            update.add_field("s", IdentityTransform(), f"s{number}")  # a spec of its own, which no file has
        table = self.table
        late, spec_id = Held.append(table, ids(number)), table.spec().spec_id
        with table.update_spec() as update:
            update.remove_field(f"s{number}")
        removal = self.sent(self._removal(spec_id))
        append = self.held(late, BLIND if number // 4 % 2 else None)
        match number % 4:
            case 0:
                landed = self.one_lands(removal, append) == 1
            case 1:
                assert [200, 409] == [append(), removal()]
                landed = True
            case _:
                assert 200 == removal()
                if number % 4 == 2:
                    with self.table.update_spec() as update:
                        update.add_field("id", IdentityTransform(), f"i{number}")
                    assert spec_id == self.table.spec().spec_id, "the id is given again"
                assert 409 == append()
                landed = False
                if number % 4 == 2:
                    with self.table.update_spec() as update:
                        update.remove_field(f"i{number}")
                    assert 200 == self.sent(self._removal(spec_id))()
        if landed:
            self.expected.append(number)
            self.count()

    def _removal(self, spec_id: int) -> dict[str, Any]:
        metadata = self.table.metadata
        return {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": str(metadata.table_uuid)},
                {"type": "assert-default-spec-id", "default-spec-id": metadata.default_spec_id},
            ],
            "updates": [{"action": "remove-partition-specs", "spec-ids": [spec_id]}],
        }


class Replacements(Race):
    """The table is replaced by a client that read it up to three appends ago, while a blind append arrives."""

    def round(self, number: int) -> None:
        """See :meth:`Race.round`."""
        table, first = self.table, 10 * number
        late, other = Held.replacement(table, ids(first)), Held.append(table, ids(first + 1))
        for more in range(number % 4):
            self.table.append(ids(first + 2 + more))
        answers = self.at_once(self.held(late), self.held(other, BLIND))
        if late.found_no_rows and answers == [409, 200]:
            # The append came first, and what replaces "no rows" would have taken its row out.
            self.expected = [first + 1]
            assert self.expected == row_ids(self.table)
        else:
            assert [200, 200] == answers
            self.expected = row_ids(self.table)
            assert self.expected in ([first], [first, first + 1]), self.expected
        self.count()
        self.landed.check(self.table.metadata_location)


RACES: tuple[type[Race], ...] = (Merges, Overwrites, Flink, Kafka, Wap, Branches, Version3, DroppedSpecs, Replacements)


def main() -> None:
    """Run the races and the programs, and say how long each took."""
    parser = argparse.ArgumentParser(prog="make rest-programs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of each race")
    parser.add_argument("--programs", type=int, default=100, help="random programs")
    parser.add_argument("--only", help="a race whose name contains this, and no program")
    chosen = parser.parse_args()
    races = [race for race in RACES if (chosen.only or "").lower() in race.__name__.lower()]
    with racetrack() as server:
        for kind in races:
            began, race = time.monotonic(), kind(server, ("db", kind.__name__))
            for number in range(chosen.rounds):
                race.round(number)
            race.check()
            print(f"{kind.__name__}: {chosen.rounds} rounds, {time.monotonic() - began:.0f} s", flush=True)
        if chosen.only is None:
            began = time.monotonic()
            with server.library() as catalog:
                for seed in range(chosen.programs):
                    Program(seed, server, catalog, ("db", f"p{seed}")).run(steps=30)
            print(f"{chosen.programs} programs, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
