"""Runs in which clients write through two servers, over a network that loses, delays and doubles what they ask.

A server is the product's: its routes and all behind them, in as many threads as there are requests. Made up are the
network, and the clients, which do what Iceberg's do: they write their files, commit, try again what was refused, and
delete the files of a commit that was refused for good.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import orjson
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Identifier, Record

from commit_coord.coordinator import Coordinator
from commit_coord.coordinator.request_ids import named_in
from commit_coord.errors import MetastoreUnavailable
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.base import Lease
from commit_coord.model import LeaseState, LockScope
from commit_coord.protocol.turns import Stage, Turns
from commit_coord.rest.commits import DECLARATION_HEADER
from commit_coord.rest.errors import error_answer
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.lanes import WorkKind
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.routes import Admitted, Api
from commit_coord.rest.turns import WAITS, Lines
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.wire import HttpAnswer, Request
from commit_coord.testing.history import Answer, Append, Body, check_files
from tests.proof.sim.plan import Job, Kind, Plan, Writer
from tests.proof.sim.rows import SimulatedCatalog
from tests.proof.sim.run import _SAW, MARK, TABLE, Outcome, Run
from tests.proof.sim.services import Client, SimulatedFileIO
from tests.proof.sim.world import NoAnswer, OfThread, Process, Thread, Unreachable, Weather, World

T = TypeVar("T")

_PATH = f"/v1/sim/namespaces/{TABLE[0]}/tables/{TABLE[1]}"
_PATIENCE_S = 40.0
"""Seconds after which a client waits for an answer no longer."""
_LATE_S = 320.0
"""Seconds after which nothing that was sent is still under way."""
_SENDS = 8
"""How often it sends one request."""
_FLINK, _KAFKA = "flink.max-committed-checkpoint-id", "kafka.connect.offsets.control.group"


def simulate_rest(plan: Plan) -> Outcome:
    """Run *plan*. The same plan gives the same outcome."""
    with RestRun.of(plan) as run:
        return run.outcome()


# The servers.


class Condition(threading.Condition):
    """Who waits gives its turn back. Nobody else runs until then, so there is no lock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiters: list[tuple[Thread, int]] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        """See :meth:`threading.Condition.wait`."""
        waiter = self._world.expected()
        self._waiters.append(waiter)
        waiter[0].process.clock.sleep(1e6 if timeout is None else timeout)
        woken = waiter not in self._waiters
        if not woken:
            self._waiters.remove(waiter)
        return woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """See :meth:`threading.Condition.wait_for`."""
        clock = self._world.expected()[0].process.clock
        until = clock.now() + (1e6 if timeout is None else timeout)
        while not predicate() and clock.now() < until:
            self.wait(until - clock.now())
        return predicate()

    def notify_all(self) -> None:
        """See :meth:`threading.Condition.notify_all`."""
        waiters, self._waiters = self._waiters, []
        for thread, turn in waiters:
            self._world.at(self._world.now, partial(self._world.resume, thread, turn, "notified"))


class ServingClient(Client):
    """A server's client of the stores. Each thread has a latch of its own.

    A pointer that can't be read is an error as from a metastore: the answer 503, after which clients send again also
    what has no key.
    """

    def __init__(self, process: Process, *others: Any, shares_latch: bool) -> None:
        self._latches = OfThread(process.world)
        super().__init__(process, *others, shares_latch=shares_latch)

    @property
    def latch(self) -> Lease | None:
        """The latch that this thread was granted last."""
        return getattr(self._latches, "last", None)

    @latch.setter
    def latch(self, lease: Lease | None) -> None:
        if lease is not None:
            self._latches.last = lease

    def pointer(self, table: Identifier) -> str | None:
        """Read the pointer."""
        try:
            return super().pointer(table)
        except (NoAnswer, Unreachable) as error:
            raise MetastoreUnavailable("the pointer can't be read") from error


class ServedCatalog(SimulatedCatalog):
    """One server's catalog, as far as the routes of tables ask for it."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(coordinator, "none")
        self.properties: dict[str, str] = {}
        settings: Any = self.settings
        settings.commit_coord_traces, settings.commit_journal_lifetime_ms = None, 3_600_000


class InTurn:
    """In place of :class:`commit_coord.rest.turns.Lines`, whose commits wait on an event loop: here, in threads.

    Args:
        process: The server.
        turns: Decides.
    """

    def __init__(self, process: Process, turns: Turns) -> None:
        self._clock, self._turns = process.clock, turns
        self._changed = Condition(process.world)

    def answer(self, api: Api, admitted: Admitted) -> HttpAnswer:
        """Return the answer to a request; a commit waits for its turn, and a refusal is held back."""
        work = api.work(admitted)
        if work.kind is not WorkKind.COMMIT:
            return api.answer(admitted)
        turns, clock = self._turns, self._clock
        ticket = turns.enter(work.objects, work.writer, clock.now())
        try:
            while ticket.stage is Stage.WAITING:
                self._wait()
            answer = api.answer(admitted)
            if answer.head_moved:
                turns.refuse(ticket, clock.now())
                self._changed.notify_all()
                while ticket.stage is Stage.REFUSED:
                    self._wait()
            return answer
        finally:
            turns.leave(ticket, clock.now())
            self._changed.notify_all()

    def _wait(self) -> None:
        at = self._turns.wakes_at()
        self._changed.wait(None if at is None else max(at - self._clock.now(), 0.001))
        if self._turns.advance(self._clock.now()):
            self._changed.notify_all()


Reply = Callable[[HttpAnswer | None], None]


class Server:
    """One life of a server process."""

    def __init__(self, run: RestRun, process: Process, coordinator: Coordinator, files: SimulatedFileIO) -> None:
        self._run, self._process = run, process
        catalog: Any = ServedCatalog(coordinator)
        warehouses = Warehouses(["sim"])
        warehouses._opened["sim"] = Warehouse(
            catalog,
            TableAnswers(lambda _: files),
            Lines(process.clock, reserved_ms=0, most_waiting=0),
        )
        keys = Idempotency(clock=process.clock, changed=Condition(process.world))
        self._api = Api(warehouses, keys=keys)
        reserve_s = run.plan.reserved_ms / 1000
        self._turns = InTurn(process, Turns(reserve_s=reserve_s, wait_s=reserve_s * WAITS, most_waiting=256))
        self.open: dict[int, Reply] = {}
        """The connections on which an answer is awaited, by their numbers."""
        self._numbers = itertools.count()

    def take(self, request: Request, reply: Reply) -> None:
        """Carry *request* out in a thread of its own, and reply."""
        number = next(self._numbers)
        self.open[number] = reply

        def work() -> None:
            try:
                answer = self._turns.answer(self._api, self._api.admit(*self._api.find(request)))
            except Exception as error:  # noqa: BLE001 - it is the answer
                answer = error_answer(error)
            if request.method == "POST":
                said = "" if answer.status == 200 else f": {orjson.loads(answer.body)['error']['message'][:150]}"
                self._process.note(f"answers {answer.status} to {request.request_id}{said}")
                self._run.served(self._process, request, answer)
            del self.open[number]
            reply(answer)

        self._process.world.start(self._process, work)


class Network:
    """What clients ask travels to a server, and its answer back.

    Args:
        world: Where.
        weather: What becomes of it.
        servers: Those that live.
    """

    def __init__(self, world: World, weather: Weather, servers: dict[str, Server]) -> None:
        self._world, self._weather, self._servers = world, weather, servers

    def ask(self, process: Process, request: Request, names: Sequence[str], *, may_double: bool) -> HttpAnswer:
        """Return the answer of the first of the servers *names*; the others may get a double of it.

        Raises:
            NoAnswer: It did not come. What was asked may have been done, or may be done later.
            Unreachable: The server is gone; nothing was sent.
        """
        process.step()
        world, weather, dice = self._world, self._weather, self._world.random.random
        thread, turn = world.expected()
        travel, draw = self._travel(), dice()

        def deliver(name: str, *, answered: bool) -> None:
            server = self._servers.get(name)
            if server is not None:
                server.take(request, reply if answered else lambda _: None)
            elif answered:
                reply(Unreachable(name))

        def reply(answer: HttpAnswer | Unreachable | None) -> None:
            world.at(world.now + self._travel(), lambda: world.resume(thread, turn, answer or "cut"))

        def after(seconds: float, name: str, *, answered: bool) -> None:
            world.at(world.now + seconds, lambda: deliver(name, answered=answered))

        fates = itertools.accumulate(
            (weather.lost, weather.unanswered, weather.refused, weather.late, weather.twice if may_double else 0.0)
        )
        match next((number for number, bound in enumerate(fates) if draw < bound), None):
            case 0:
                process.note(f"asks {names[0]} for {request.request_id}: lost")
            case 1:
                process.note(f"asks {names[0]} for {request.request_id}: the answer will be lost")
                after(travel, names[0], answered=False)
            case 2:
                process.note(f"can't reach {names[0]}")
                world.at(world.now + travel, lambda: reply(Unreachable(names[0])))
            case 3:
                late = 300 * dice() ** 2
                process.note(f"asks {names[0]} for {request.request_id}: it will come {late:.1f} s late")
                after(late, names[0], answered=False)
            case 4:
                again, name = 60 * dice() ** 5, names[int(len(names) * dice())]
                process.note(f"asks {names[0]} for {request.request_id}: {name} gets it too, in {again:.3f} s")
                after(travel, names[0], answered=True)
                after(again, name, answered=False)
            case _:
                process.note(f"asks {names[0]} for {request.request_id}")
                after(travel, names[0], answered=True)
        match world.block(_PATIENCE_S * (dice() if draw < weather.lost + weather.unanswered else 1.0)):
            case HttpAnswer() as answer:
                return answer
            case Unreachable() as error:
                raise error
            case _:
                process.note(f"gets no answer to {request.request_id}")
                raise NoAnswer(names[0])

    def _travel(self) -> float:
        dice = self._world.random.random
        if dice() < self._weather.slow:
            return 10.0 * dice() ** 2
        return 0.001 + 0.01 * dice() ** 2


# The clients.


@dataclass
class Written:
    """The files of one commit that its client has written."""

    data: list[str] = field(default_factory=list)
    manifests: list[ManifestFile] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)


class Asker:
    """A client process: writes tables through the servers."""

    def __init__(self, run: RestRun, process: Process, writer: Writer) -> None:
        self._run, self._process, self._writer = run, process, writer
        self._random = run.world.random
        self._names = [one.name for one in run.plan.writers if one.kind is Kind.SERVER]
        self._io = SimulatedFileIO(process, run.files)

    def do(self, job: Job, number: int) -> bool:
        """Do one job; return whether it makes sense to go on with the next one."""
        mark = f"{self._process.name}.{number}"
        match job:
            case Job.REST_APPEND | Job.REST_BLIND:
                self._run.appends[mark] = Append(mark=mark, answer=Answer.UNKNOWN)
                answer, snapshot_id = self._append(mark, lambda _: {}, blind=job is Job.REST_BLIND)
                acknowledged = snapshot_id if answer is Answer.ACKNOWLEDGED else None
                self._run.appends[mark] = Append(mark=mark, answer=answer, snapshot_id=acknowledged)
            case Job.REST_CHANGE:
                self._run.changes[mark] = Answer.UNKNOWN
                self._run.changes[mark] = self._change(mark)
            case Job.CHECKPOINT:
                return self._until_it_is_there(f"flink.{number + 1}", partial(_flink, number + 1))
            case Job.OFFSETS:
                self._next_offsets()
        return True

    # What a stream commits is there once, whichever of its instances has done it.

    def _until_it_is_there(self, mark: str, summary: Callable[[TableMetadata], dict[str, str] | None]) -> bool:
        self._run.appends.setdefault(mark, Append(mark=mark, answer=Answer.UNKNOWN))
        for _ in range(4):
            if self._append(mark, summary, blind=True)[0] is Answer.ACKNOWLEDGED:
                self._run.appends[mark] = Append(mark=mark, answer=Answer.ACKNOWLEDGED)
                return True
            self._process.clock.sleep(1 + 5 * self._process.clock.random())
        return False

    def _next_offsets(self) -> None:
        head = self._load()
        if head is None:
            return
        read = int(_last(head, _KAFKA) or 0)
        mark = f"kafka.{read + 1}"

        def summary(now: TableMetadata) -> dict[str, str] | None:
            return {_KAFKA: str(read + 1)} if int(_last(now, _KAFKA) or 0) == read else None

        self._until_it_is_there(mark, summary)

    def _append(
        self, mark: str, summary: Callable[[TableMetadata], dict[str, str] | None], *, blind: bool
    ) -> tuple[Answer, int]:
        """Append one file, as Iceberg Java's ``SnapshotProducer`` does it.

        Args:
            mark: Of its snapshot.
            summary: Returns what else the summary says, on the table as it is before the first try; None where it is
                there already.
            blind: Whether it is declared to be blind.
        """
        run, written = self._run, Written()
        snapshot_id = self._random.getrandbits(62)
        said: dict[str, str] | None = None
        for again in range(self._writer.tries):
            if again:
                self._process.clock.sleep(0.1 * 2**again * self._process.clock.random())
            head = self._load()
            if head is None:
                break
            if said is None and (said := summary(head)) is None:
                return Answer.ACKNOWLEDGED, snapshot_id
            try:
                updates, requirements = self._write(written, head, mark, snapshot_id, said, blind=blind)
            except OSError:
                break
            answer = self._commit(mark, requirements, updates, blind=blind)
            if answer is None:
                return Answer.UNKNOWN, snapshot_id
            if answer.status == 200:
                self._delete_unused(written, _metadata(answer), snapshot_id)
                return Answer.ACKNOWLEDGED, snapshot_id
            if answer.status != 409:
                break
        self._process.note(f"gives {mark} up, and deletes its files")
        run.refused_ids[snapshot_id] = mark
        self._delete([*written.data, *written.lists, *(one.manifest_path for one in written.manifests)])
        return Answer.REFUSED, snapshot_id

    def _write(
        self, written: Written, head: TableMetadata, mark: str, snapshot_id: int, said: dict[str, str], *, blind: bool
    ) -> tuple[Sequence[TableUpdate], Sequence[TableRequirement]]:
        if not written.manifests:
            self._write_manifest(written, head, mark, snapshot_id)
        parent = head.current_snapshot()
        follows = parent.snapshot_id if parent else None
        listed = f"sim://t/metadata/snap-{snapshot_id}-{self._new_id()}.avro"
        written.lists.append(listed)
        manifest_list.write_appended(
            self._io, listed, head=parent.manifest_list if parent else None, added=written.manifests, metadata=head,
            snapshot_id=snapshot_id, parent_snapshot_id=follows, sequence_number=head.next_sequence_number(),
        )  # fmt: skip
        summary = {"added-data-files": "1", "added-records": "1", MARK: mark, **said}
        if not blind:
            summary[_SAW] = str(follows or "nothing")
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=follows,
            sequence_number=head.next_sequence_number(),
            timestamp_ms=self._process.clock.wall_ms(),
            manifest_list=listed,
            summary=Summary(Operation.APPEND, **summary),
            schema_id=0,
        )
        moved = SetSnapshotRefUpdate(
            ref_name="main",
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot_id,
            max_ref_age_ms=None,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        )
        return (AddSnapshotUpdate(snapshot=snapshot), moved), (AssertRefSnapshotId(ref="main", snapshot_id=follows),)

    def _write_manifest(self, written: Written, head: TableMetadata, mark: str, snapshot_id: int) -> None:
        name = f"{mark}-{self._new_id()}"
        data, path = f"sim://t/data/{name}.parquet", f"sim://t/metadata/{name}-m0.avro"
        self._io.put(data, b"rows")
        written.data.append(data)
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=data,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=4,
        )
        entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file)
        with write_manifest(2, head.spec(), head.schema(), self._io.new_output(path), snapshot_id, "null") as writer:
            writer.add_entry(entry)
        written.manifests.append(writer.to_manifest_file())
        self._run.data_of[path] = data

    def _change(self, mark: str) -> Answer:
        answer = self._commit(mark, (), (SetPropertiesUpdate(updates={f"sim-{mark}": mark}),), blind=False)
        if answer is None:
            return Answer.UNKNOWN
        return Answer.ACKNOWLEDGED if answer.status == 200 else Answer.REFUSED

    def _delete_unused(self, written: Written, landed: TableMetadata, snapshot_id: int) -> None:
        """Delete what the table does not use: the server may have written a list of its own."""
        snapshot = landed.snapshot_by_id(snapshot_id)
        if snapshot is None:
            self._run.broken.append(f"AcknowledgedStays: the answer does not have the snapshot {snapshot_id}")
            return
        try:
            used = {one.manifest_path for one in manifest_list.read(self._io, snapshot.manifest_list)}
        except OSError:
            return
        unused = [path for path in written.lists if path != snapshot.manifest_list]
        self._delete(unused + [one.manifest_path for one in written.manifests if one.manifest_path not in used])

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(OSError):
                self._io.delete(path)

    # Requests.

    def _load(self) -> TableMetadata | None:
        """Return the table as a server shows it; None where none does."""
        request = Request(method="GET", path=_PATH, request_id="the table")
        answer = self._send(request, resends=True)
        return _metadata(answer) if answer is not None and answer.status == 200 else None

    def _commit(
        self, mark: str, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate], *, blind: bool
    ) -> HttpAnswer | None:
        """Return the answer to a commit; None where nobody knows what became of it."""
        key = self._new_key()
        headers = {"idempotency-key": key} if self._writer.keyed else {}
        if blind:
            headers[DECLARATION_HEADER] = "blind"
        asked = (AssertTableUUID(uuid=uuid.UUID(int=1)), *requirements)
        body = {name: [one.model_dump(mode="json", exclude_none=False) for one in many]
                for name, many in (("requirements", asked), ("updates", updates))}  # fmt: skip
        request = Request(method="POST", path=_PATH, headers=headers, body=orjson.dumps(body), request_id=mark)
        if self._writer.keyed:
            self._run.keys[key] = mark
        return self._send(request, resends=self._writer.keyed)

    def _send(self, request: Request, *, resends: bool) -> HttpAnswer | None:
        """Send a request until it is answered; one that changes something, and has no key, only if nothing was done."""
        clock, may_double = self._process.clock, resends or self._writer.doubled
        for _ in range(_SENDS):
            names = self._names if clock.random() < 0.5 else self._names[::-1]
            try:
                answer = self._run.network.ask(self._process, request, names, may_double=may_double)
            except Unreachable:
                pass
            except NoAnswer:
                if not resends:
                    return None
            else:
                if answer.status < 500 and answer.status != 429:
                    return answer
                if not resends and answer.status != 503:
                    return None
            clock.sleep(0.2 + 3 * clock.random() ** 2)
        return None

    def _new_id(self) -> uuid.UUID:
        return self._run.world.host.new_id()

    def _new_key(self) -> str:
        """Return a UUID of version 7."""
        random = self._random.getrandbits(128)
        return str(uuid.UUID(int=random & ~(0xF << 76) & ~(0xC << 60) | 7 << 76 | 8 << 60))


def _metadata(answer: HttpAnswer) -> TableMetadata:
    shown = orjson.loads(answer.body)
    return fast_metadata.parse(orjson.dumps(shown["metadata"]), shown["metadata-location"])


def _flink(checkpoint: int, head: TableMetadata) -> dict[str, str] | None:
    if int(_last(head, _FLINK) or 0) >= checkpoint:
        return None
    return {"flink.job-id": "job", "flink.operator-id": "operator", _FLINK: str(checkpoint)}


def _last(head: TableMetadata, key: str) -> str | None:
    """Return what the newest snapshot of main that says something at *key* says."""
    snapshot = head.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary
        if summary is not None and (found := summary.additional_properties.get(key)) is not None:
            return found
        snapshot = head.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    return None


# The run.


class RestRun(Run):
    """A run whose clients write through servers."""

    def __init__(self, plan: Plan) -> None:
        self.servers: dict[str, Server] = {}
        self.data_of: dict[str, str] = {}
        """By manifest, its data file."""
        self.changes: dict[str, Answer] = {}
        self.refused_ids: dict[int, str] = {}
        """The snapshots whose clients have given them up."""
        self.keys: dict[str, str] = {}
        """By key, the mark of the commit that was asked for with it."""
        self._statuses: dict[str, set[int]] = defaultdict(set)
        """By key, what was answered."""
        super().__init__(plan)
        self.network = Network(self.world, plan.net_weather, self.servers)

    def kinds(self) -> dict[Kind, Callable[[Process, Writer], None]]:
        """Return how each kind of writer lives."""
        return super().kinds() | {Kind.SERVER: self._be_server, Kind.CLIENT: self._be_client}

    def client(self, process: Process) -> Client:
        """Return the process's client of pointers and files."""
        if self._writers[process.name].kind is not Kind.SERVER:
            return super().client(process)
        shares = any(writer.kind is Kind.ONLY_LOCKS for writer in self.plan.writers)
        return ServingClient(process, self.pointers, self.files, shares_latch=shares)

    def _bury(self, process: Process) -> None:
        """Cut the connections of a server that died, and start it again."""
        server = self.servers.pop(process.name, None)
        for reply in server.open.values() if server is not None else ():
            reply(None)
        super()._bury(process)

    def _be_server(self, process: Process, writer: Writer) -> None:
        client, coordinator = self._coordinator(process, None)
        client.take_latch = lambda: coordinator.latch(TABLE)
        server = self.servers[process.name] = Server(self, process, coordinator, client.io)
        process.note("serves")
        others = {one.name for one in self.plan.writers if one.kind is not Kind.SERVER}
        while not others <= self.done:
            process.clock.sleep(1.0)
        process.clock.sleep(_LATE_S)
        del self.servers[process.name]
        while server.open:
            process.clock.sleep(0.5)
        coordinator.locks.close()

    def _be_client(self, process: Process, writer: Writer) -> None:
        asker, jobs = Asker(self, process, writer), self._left[process.name][0]
        while jobs:
            number, job = jobs.pop(0)
            if not asker.do(job, number):
                return

    def served(self, process: Process, request: Request, answer: HttpAnswer) -> None:
        """Note what a server answers, and whether it still holds the latch."""
        if (key := request.headers.get("idempotency-key")) is not None:
            self._statuses[key].add(int(answer.status))
        mine = self.world.expected()[0]
        own = [lease for _, _, lease in self._leases if self._threads[lease.request.request_id] is mine]
        if any(lease.request.scope is LockScope.COMMIT and lease.state is LeaseState.HELD for lease in own):
            self.broken.append(f"FreeInTheEnd: {process.name} holds the latch after {request.request_id}")

    # The proof.

    def look_at_table(self) -> list[str]:
        """Return what does not hold in the table."""
        if broken := super().look_at_table():
            return broken
        body = self._body(self.pointers.location)
        broken += self._check_answers(body)
        lists = [snapshot["manifest-list"] for snapshot in body["snapshots"]][-1:]
        manifests = [one for path in lists for one in manifest_list.read(SimulatedFileIO(None, self.files), path)]
        data = (self.data_of[one.manifest_path] for one in manifests if one.manifest_path in self.data_of)
        return broken + check_files(data, self.files.content.__contains__)

    def _check_answers(self, body: Body) -> Iterator[str]:
        ids = {snapshot["snapshot-id"] for snapshot in body["snapshots"]}
        yield from (f"RefusedNever: {mark} is there" for id_, mark in self.refused_ids.items() if id_ in ids)
        properties = body["properties"]
        for mark, answer in self.changes.items():
            there = f"sim-{mark}" in properties
            if answer is not Answer.UNKNOWN and there is not (answer is Answer.ACKNOWLEDGED):
                yield f"{'RefusedNever' if there else 'AcknowledgedStays'}: {mark}"
        named = [named_in(change.location) for change in self.pointers.changes]
        carried = [one for s in body["snapshots"] for one in s["summary"].get(REQUEST_ID, "").split(",")]
        for key, mark in self.keys.items():
            times = max(named.count(key), carried.count(key))
            if times > 1 and self.plan.log_length > 2:
                yield f"NoneTwice: {mark} was carried out {times} times with the key {key}"
            refusals = [status for status in self._statuses[key] if 400 <= status < 500 and status != 429]
            if times and refusals:
                yield f"RefusedNever: {mark} is there with the key {key}, and was answered {refusals[0]}"
