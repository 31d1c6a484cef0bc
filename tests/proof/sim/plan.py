"""What one run is: who writes what, on which services, and what goes wrong. Drawn from a seed, and a value."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import overload

from commit_coord.protocol.migration import Phase
from tests.proof.sim.services import Condition
from tests.proof.sim.world import CALM, Blow, Fault, Outage, Weather


class Locks(StrEnum):
    """Which lock manager the writers use."""

    HOST = "lease-on-a-host"
    SERVER = "lease-on-a-server"
    HMS = "hms"
    ZOOKEEPER = "zookeeper"
    MEMORY = "memory"
    NONE = "none"
    MIGRATING = "hms-to-zookeeper"


class Job(StrEnum):
    """What a writer does."""

    APPEND = "append"
    NAMED_APPEND = "named append"
    """With a request id of its own, which it repeats until it is answered."""
    OVERWRITE = "overwrite"
    """Depends on what was read."""
    REGISTER = "register"
    """Reads a property and sets it."""
    LOCKED_APPEND = "locked append"
    """Under an operation lock on a partition, and not without it."""
    TABLE_APPEND = "table-locked append"
    """Likewise, on the table."""
    REST_APPEND = "append over REST"
    """Depends on what was read: it is not declared blind."""
    REST_BLIND = "blind append over REST"
    REST_CHANGE = "change over REST"
    """Sets a property, and adds no snapshot."""
    CHECKPOINT = "checkpoint"
    """The next checkpoint of the one Flink job, unless the table has it."""
    OFFSETS = "offsets"
    """The next rows of the one topic of Kafka Connect, from where the table says that it is."""
    ROWS = "rows"
    """A call of a table or a statement; see :mod:`tests.proof.sim.rows`."""


class Kind(StrEnum):
    """How a writer writes."""

    OURS = "coordinated"
    ONLY_COMPARES = "only compares"
    ONLY_LOCKS = "only locks"
    OPERATOR = "operator"
    """Writes nothing, and changes the phase."""
    ADMINISTRATOR = "administrator"
    """Writes nothing, and frees by force what waits."""
    SERVER = "server"
    """Writes what clients ask for."""
    CLIENT = "client"
    """Writes through the servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A process that does one job after the other, and is started again when it dies, *lives* times in all."""

    name: str
    jobs: tuple[Job, ...]
    kind: Kind = Kind.OURS
    rate: float = 1.0
    lives: int = 1
    begins: float = 0.0
    threads: int = 1
    """Among which its jobs are dealt out; more than one with ``hms`` alone."""
    keyed: bool = False
    """Whether it sends keys, and sends again what was not answered; of a client."""
    tries: int = 5
    """How often a client tries a commit that is refused: ``commit.retry.num-retries`` and once more."""
    doubled: bool = False
    """Whether the network may double its commits although they have no keys; of a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A table on its way between two lock services.

    Args:
        begins: Its phase at first.
        ends: Where the operators bring it.
        believed: What our first writer saw last, before it was asleep for long; None when it knows nothing.
    """

    begins: Phase
    ends: tuple[Phase, ...]
    believed: Phase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metastore:
    """How the metastore of a run serves its locks.

    Args:
        by_id: Whether in the order of their ids, as later versions do; else as 2.3.10 does.
        timeout: ``hive.txn.timeout`` in seconds, where its reaper runs.
    """

    by_id: bool = False
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run."""

    seed: int
    locks: Locks
    condition: Condition
    writers: tuple[Writer, ...]
    faults: tuple[Fault, ...] = ()
    outages: tuple[Outage, ...] = ()
    pointer_weather: Weather = CALM
    lock_weather: Weather = CALM
    lock_patience: float = 5.0
    """Seconds that a client waits for the lock service's answer."""
    metastore: Metastore = Metastore()
    file_weather: Weather = CALM
    net_weather: Weather = CALM
    """Between clients and servers."""
    reserved_ms: int = 0
    """How long a server keeps the table free for a client that was refused."""
    group_max_size: int = 16
    log_length: int = 100
    deletes_old: bool = False
    """Whether metadata files that fell out of the log are deleted."""
    acquire_timeout_ms: int = 60_000
    one_host: bool = False
    """Whether the writers see who of them is dead, where their locks are in ZooKeeper."""
    move: Move | None = None

    @property
    def belief_is_true(self) -> bool:
        """Whether who believes to hold a lock holds it: nobody frees by force, and the clocks keep up.

        That is, none is slower than the service's; in a metastore clients judge each other by theirs.
        """
        if any(writer.kind is Kind.ADMINISTRATOR for writer in self.writers):
            return False
        if self.locks is Locks.HMS:
            return len({writer.rate for writer in self.writers}) == 1
        return all(writer.rate >= 1.0 for writer in self.writers)

    def smaller(self) -> Iterator[Plan]:
        """Yield plans with one thing less."""
        for position in range(len(self.writers)):
            yield replace(self, writers=self.writers[:position] + self.writers[position + 1 :])
        for position in range(len(self.faults)):
            yield replace(self, faults=self.faults[:position] + self.faults[position + 1 :])
        for position in range(len(self.outages)):
            yield replace(self, outages=self.outages[:position] + self.outages[position + 1 :])
        if self.pointer_weather != CALM:
            yield replace(self, pointer_weather=CALM)
        if self.lock_weather != CALM:
            yield replace(self, lock_weather=CALM)
        if self.file_weather != CALM:
            yield replace(self, file_weather=CALM)
        if self.net_weather != CALM:
            yield replace(self, net_weather=CALM)
        for position, writer in enumerate(self.writers):
            if writer.threads > 1:
                fewer = replace(writer, threads=1)
                yield replace(self, writers=(*self.writers[:position], fewer, *self.writers[position + 1 :]))
            if len(writer.jobs) > 1:
                shorter = replace(writer, jobs=writer.jobs[:-1])
                yield replace(self, writers=(*self.writers[:position], shorter, *self.writers[position + 1 :]))

    def __str__(self) -> str:
        """Return it as a few lines."""
        lines = [f"locks {self.locks}, pointer store {self.condition}, groups of {self.group_max_size}"]
        if self.move is not None:
            lines.append(f"from {self.move.begins} to {', '.join(self.move.ends)}; w1 believes {self.move.believed}")
        if self.locks is Locks.HMS:
            order = "by id" if self.metastore.by_id else "as 2.3.10"
            lines.append(f"metastore grants {order}, frees after {self.metastore.timeout} s; {self.lock_patience} s")
        for writer in self.writers:
            threads = f" in {writer.threads} threads" if writer.threads > 1 else ""
            keyed = (" with keys" if writer.keyed else "") + (", once" if writer.tries == 1 else "")
            rate = f", its clock runs at {writer.rate:.4f}" if writer.rate != 1.0 else ""
            lines.append(f"{writer.name} ({writer.kind}): {', '.join(writer.jobs)}{keyed}{threads}{rate}")
        lines += [f"{f.process} at step {f.step}: {f.blow} {f.seconds:.3f} s" for f in self.faults]
        lines += [f"{o.service} is away from {o.begins:.3f} s to {o.ends:.3f} s" for o in self.outages]
        return "\n".join(lines)


_METASTORES = 0.2
"""The part of the runs whose locks are a metastore's. Drawn apart, so that all others are what they were."""
_ZOOKEEPERS = 0.3
"""The part of the runs whose locks are in ZooKeeper. Drawn apart, so that all others are what they were."""

_ROUGH = 0.05
"""The part of the runs in which everything goes wrong at once. Drawn apart too."""

_JOBS = (Job.APPEND,) * 6 + (Job.NAMED_APPEND, Job.OVERWRITE, Job.REGISTER, Job.LOCKED_APPEND)


def draw(seed: int) -> Plan:
    """Return the plan of run *seed*."""
    dice = random.Random(f"plan {seed}")
    locks = dice.choice([Locks.HOST] * 4 + [Locks.SERVER] * 5 + [Locks.MEMORY, Locks.NONE])
    metastore = Metastore()
    if random.Random(f"zookeeper {seed}").random() < _ZOOKEEPERS:
        locks = Locks.ZOOKEEPER
    elif random.Random(f"metastore {seed}").random() < _METASTORES:
        locks = Locks.HMS
        metastore = Metastore(by_id=dice.random() < 0.5, timeout=dice.choice([None, None, None, 20.0, 60.0, 300.0]))
    remote = locks in (Locks.SERVER, Locks.ZOOKEEPER, Locks.HMS)
    leases = remote or locks is Locks.HOST
    condition = Condition.IGNORES if leases and dice.random() < 0.25 else Condition.COMPARES
    slow = remote and condition is Condition.COMPARES and dice.random() < 0.15
    crashes = locks is not Locks.MEMORY
    writers = []
    for number in range(1, dice.choice([2, 2, 3, 3, 4]) + 1):
        threads = dice.choice([1, 1, 2, 3]) if locks is Locks.HMS else 1
        chosen = (*_JOBS, Job.LOCKED_APPEND, Job.TABLE_APPEND) if locks is Locks.HMS else _JOBS
        jobs = tuple(dice.choice(chosen) for _ in range(threads * dice.choice([1, 1, 2])))
        if locks is Locks.NONE:
            jobs = tuple(Job.APPEND if job is Job.LOCKED_APPEND else job for job in jobs)
        rate = (
            dice.uniform(0.8, 1.2)
            if slow
            else dice.uniform(1.0, 1.01)
            if locks in (Locks.SERVER, Locks.ZOOKEEPER)
            else 1.0
        )
        writers.append(
            Writer(
                name=f"w{number}",
                jobs=jobs,
                rate=rate,
                lives=dice.choice([1, 2]) if crashes else 1,
                begins=dice.random() * dice.choice([0.005, 0.2]),
                threads=threads,
            )
        )
    if dice.random() < 0.25 and (condition is Condition.COMPARES or leases):
        kind = Kind.ONLY_COMPARES if condition is Condition.COMPARES and dice.random() < 0.5 else Kind.ONLY_LOCKS
        if kind is Kind.ONLY_COMPARES or leases:
            jobs = (Job.APPEND,) * dice.choice([1, 2])
            writers.append(Writer(name="foreign", jobs=jobs, kind=kind, begins=dice.random() * 0.2))
    faults = []
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        blow = dice.choice([Blow.CRASH, Blow.CRASH, Blow.PAUSE, Blow.PAUSE, Blow.CLOCK, Blow.INTERRUPT])
        if not crashes:
            blow = dice.choice([Blow.CLOCK, Blow.INTERRUPT])
        stands_still = dice.choice([1.0, 20.0, 20.0, 90.0]) * dice.random()
        seconds = {
            Blow.PAUSE: stands_still,
            Blow.CLOCK: dice.uniform(-3600, 3600),
            Blow.INTERRUPT: 0.02 * dice.random(),
        }
        faults.append(
            Fault(
                process=dice.choice(writers).name,
                step=1 + int(30 * dice.random() ** 1.3),
                blow=blow,
                seconds=seconds.get(blow, 0.0),
            )
        )
    outages = []
    if dice.random() < 0.2:
        begins = dice.random() * 0.3
        service = dice.choice(["locks", "locks", "pointer"] if remote else ["pointer"])
        outages.append(
            Outage(
                service=service,
                begins=begins,
                ends=begins + dice.choice([0.2, 3.0, 30.0]) * dice.random(),
                forgets=service == "locks" and locks is Locks.SERVER and dice.random() < 0.7,
            )
        )

    log_length = dice.choice([100, 100, 2])

    def weather(*, twice: bool = True) -> Weather:
        if dice.random() < 0.5:
            return CALM
        scale = dice.choice([0.02, 0.1])
        return Weather(
            lost=scale * dice.random(),
            unanswered=scale * dice.random(),
            late=scale * dice.random(),
            twice=scale * dice.random() if twice else 0.0,
            refused=scale * dice.random() / 2,
            slow=scale * dice.random(),
        )

    pointer_weather = weather()
    # Over the one connection of a metastore's call, or of a transaction, nothing comes twice.
    lock_weather = weather(twice=locks is not Locks.HMS) if remote else CALM
    if locks is Locks.SERVER:
        lock_weather = replace(lock_weather, twice=0.0)  # Drawn all the same, so that the runs are what they were.
    plan = Plan(
        seed=seed,
        locks=locks,
        condition=condition,
        writers=tuple(writers),
        faults=tuple(faults),
        outages=tuple(outages),
        pointer_weather=pointer_weather,
        lock_weather=lock_weather,
        lock_patience=dice.choice([5.0, 30.0]) if locks is Locks.HMS else 5.0,
        metastore=metastore,
        file_weather=Weather(refused=0.01, slow=0.02) if dice.random() < 0.2 else CALM,
        group_max_size=dice.choice([16, 16, 2, 1]),
        log_length=log_length,
        deletes_old=log_length == 2 and dice.random() < 0.5,
        acquire_timeout_ms=dice.choice([60_000, 60_000, 5_000]),
        one_host=locks is Locks.ZOOKEEPER and dice.random() < 0.5,
    )
    return rough(plan) if random.Random(f"rough {seed}").random() < _ROUGH else plan


def rough(plan: Plan) -> Plan:
    """Return *plan* with everything going wrong at once: what takes three accidents in a row is seldom drawn.

    Answers of the lock service are lost, changes of the pointer refused, up to every fourth; everybody is struck,
    interrupted above all, and an administrator frees what waits.
    """
    if plan.locks not in (Locks.SERVER, Locks.ZOOKEEPER, Locks.HMS):
        return plan
    dice = random.Random(f"rough plan {plan.seed}")
    writers = tuple(writer for writer in plan.writers if writer.kind is Kind.OURS)
    faults = tuple(
        Fault(
            process=writer.name,
            step=1 + int(25 * dice.random()),
            blow=dice.choice((Blow.INTERRUPT, Blow.INTERRUPT, Blow.INTERRUPT, Blow.PAUSE, Blow.CRASH)),
            seconds=dice.choice((0.01, 5.0, 20.0)) * dice.random(),
        )
        for writer in writers
        for _ in range(dice.choice((1, 2)))
    )
    if plan.condition is Condition.COMPARES:
        frees = Writer(name="admin", jobs=(), kind=Kind.ADMINISTRATOR, begins=dice.random())
        writers += (frees,) if dice.random() < 0.5 else ()
    lost = dice.choice((0.05, 0.25))
    return replace(
        plan,
        writers=writers,
        faults=faults,
        lock_weather=replace(plan.lock_weather, unanswered=lost * dice.random(), slow=0.2 * dice.random()),
        pointer_weather=Weather(
            unanswered=0.1 * dice.random(), late=0.1 * dice.random(), refused=0.25 * dice.random(), slow=0.1
        ),
    )


def draw_rows(seed: int) -> Plan:
    """Return the plan of run *seed* of those in which tables with rows are written.

    A call reads and writes many files, so more of its messages come before the one that a process is struck at.
    """
    dice = random.Random(f"rows plan {seed}")
    plan = draw(seed)
    writers = tuple(
        replace(writer, jobs=(Job.ROWS,) * (writer.threads * dice.choice((3, 4, 6))))
        if writer.kind is Kind.OURS
        else writer
        for writer in plan.writers
        if writer.kind in (Kind.OURS, Kind.ADMINISTRATOR)
    )
    names = {writer.name for writer in writers}
    faults = tuple(
        replace(fault, step=1 + int(150 * dice.random() ** 1.3)) for fault in plan.faults if fault.process in names
    )
    return replace(plan, writers=writers, faults=faults)


def draw_rest(seed: int) -> Plan:
    """Return the plan of run *seed* of those in which clients write through two servers."""
    dice = random.Random(f"rest plan {seed}")
    plan = draw(seed)
    if plan.locks is Locks.MEMORY:
        plan = replace(plan, locks=Locks.HOST)
    rates = [1.0, 1.0] if plan.locks is not Locks.SERVER else [dice.uniform(1.0, 1.01) for _ in range(2)]
    writers = [
        Writer(name=f"s{number}", jobs=(), kind=Kind.SERVER, rate=rate, lives=4) for number, rate in enumerate(rates, 1)
    ]
    kinds = [Job.REST_APPEND, Job.REST_APPEND, Job.REST_BLIND, Job.REST_BLIND, Job.REST_CHANGE]
    writers += [
        Writer(
            name=f"c{number}",
            jobs=tuple(dice.choice(kinds) for _ in range(dice.choice([1, 2, 3]))),
            kind=Kind.CLIENT,
            keyed=dice.random() < 0.6,
            tries=dice.choice([1, 5, 5]),
            lives=dice.choice([1, 2]),
            begins=dice.random() * dice.choice([0.005, 0.2]),
        )
        for number in range(1, dice.choice([1, 2, 2, 3, 3]) + 1)
    ]
    stream = dice.choice([None, None, Job.CHECKPOINT, Job.OFFSETS])
    if stream is not None:
        jobs, keyed = (stream,) * dice.choice([1, 2, 3]), dice.random() < 0.5
        for name, begins in (("old", 0.0), ("new", dice.choice([0.1, 2.0, 40.0]) * dice.random())):
            writers.append(Writer(name=name, jobs=jobs, kind=Kind.CLIENT, keyed=keyed, begins=begins))
    if dice.random() < 0.4:
        writers += [replace(one, name=f"w{n}") for n, one in enumerate(plan.writers[:1], 1) if one.kind is Kind.OURS]
    if dice.random() < 0.5:
        writers += [one for one in plan.writers if one.kind in (Kind.ONLY_COMPARES, Kind.ONLY_LOCKS)]
    faults = [
        Fault(
            process=dice.choice(["s1", "s2"]),
            step=1 + int(60 * dice.random() ** 1.3),
            blow=dice.choice([Blow.CRASH, Blow.CRASH, Blow.PAUSE]),
            seconds=dice.choice([1.0, 20.0, 90.0]) * dice.random(),
        )
        for _ in range(dice.choice([0, 1, 1, 2, 3]))
    ]
    for writer in writers:
        if writer.kind is Kind.CLIENT and dice.random() < 0.3:
            blow = dice.choice([Blow.CRASH, Blow.PAUSE, Blow.PAUSE])
            seconds = dice.choice([1.0, 20.0, 90.0]) * dice.random()
            step = 1 + int(12 * dice.random())
            faults.append(Fault(process=writer.name, step=step, blow=blow, seconds=seconds))
    scale = dice.choice([0.0, 0.1, 0.2])
    return replace(
        plan,
        writers=tuple(writers),
        faults=tuple(faults),
        net_weather=Weather(
            lost=scale * dice.random() / 2,
            unanswered=scale * dice.random(),
            late=scale * dice.random(),
            twice=scale * dice.random(),
            refused=scale * dice.random() / 4,
            slow=scale * dice.random(),
        ),
        reserved_ms=dice.choice([0, 500, 2000]),
    )


_MOVERS = (
    Writer(name="w1", jobs=(Job.APPEND, Job.LOCKED_APPEND)),
    Writer(name="w2", jobs=(Job.LOCKED_APPEND, Job.APPEND)),
    Writer(name="foreign", jobs=(Job.APPEND,), kind=Kind.ONLY_LOCKS),
    Writer(name="op", jobs=(), kind=Kind.OPERATOR, lives=2),
)
_STEPS = {"w1": 60, "w2": 60, "foreign": 10, "op": 35}
"""Messages before which each of them is struck: about as many as they send when nobody is."""

_BLOWS = ((Blow.PAUSE, 3.0), (Blow.PAUSE, 20.0), (Blow.CRASH, 0.0))
"""For less than a lease, for more, for ever."""

_LATE = 0.4
"""Seconds after which the phase has changed, where nobody is struck."""


class Moves(Sequence[Plan]):
    """Every run of two writers of ours, one that only locks, and a change of the phase, in which so many are struck.

    A client that is stopped lets all the others go as far as they come without it: so each order of the messages is
    there in which the turn is taken from a process so often, and each death. Our first writer believes in another phase
    than the table's, or comes late and knows nothing. Last come those in which two operators pull in opposite
    directions.

    Args:
        strikes: How many different processes are struck in one run.
    """

    def __init__(self, strikes: int = 1) -> None:
        faults = [
            Fault(process=name, step=step, blow=blow, seconds=seconds)
            for name, steps in _STEPS.items()
            for step in range(1, steps + 1)
            for blow, seconds in _BLOWS
        ]
        self._struck = [
            struck
            for struck in itertools.combinations(faults, strikes)
            if len({fault.process for fault in struck}) == strikes
        ]
        steps = [(one, other) for one, other in itertools.permutations(Phase, 2) if one.toward(other) is other]
        self._ways = [
            Move(begins=begins, ends=(ends,), believed=believed if believed is not begins else None)
            for begins, ends in steps
            for believed in Phase
        ]
        self._ways.append(Move(begins=Phase.BOTH, ends=(Phase.ZOOKEEPER, Phase.HMS)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._ways) * len(self._struck)

    @overload
    def __getitem__(self, number: int) -> Plan: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Plan]: ...
    def __getitem__(self, number: int | slice) -> Plan | Sequence[Plan]:
        """Return the plan of that number; its seed is one more."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        way, struck = self._ways[number // len(self._struck)], self._struck[number % len(self._struck)]
        first, *others = _MOVERS
        rival = Writer(name="op2", jobs=(), kind=Kind.OPERATOR)
        return Plan(
            seed=number + 1,
            locks=Locks.MIGRATING,
            condition=Condition.COMPARES,
            writers=(
                first if way.believed else replace(first, begins=_LATE),
                *others,
                *([rival] if len(way.ends) > 1 else []),
            ),
            faults=struck,
            move=way,
        )
