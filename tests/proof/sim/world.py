"""Time, processes, messages and faults of one simulated run. Nothing here knows of commits or locks.

Theory of operation
    A *world* has an agenda: what happens when, in virtual seconds. Whatever happens is done by the hub, one thing after
    the other, so a run takes as long as its work and is the same for the same seed.

    A simulated thread is a greenlet: product code that blocks (a sleep, a question to a service) gives the turn
    back to the hub at just that line and goes on when the answer is due. Everything between two such lines is one step
    that nobody sees half done.

    A process dies by never being given the turn again, so none of its ``finally`` blocks run. When it is stopped, its
    turns are put off until it continues; its clock and the services go on.

    A message to a service travels, is carried out, and its answer travels back. Each may be lost; a message may come
    twice, or minutes late. Who waits for an answer gives up after its patience.
"""

from __future__ import annotations

import heapq
import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from commit_coord.model import Owner

T = TypeVar("T")

_EPOCH_MS = 1_700_000_000_000


class Halt(BaseException):
    """Ends the threads of a dead process when the run is over. By then nothing that they do has an effect."""


class NoAnswer(Exception):
    """A service did not answer; what was asked may have been done, or may be done later."""


class Unreachable(Exception):
    """A service could not be reached; what was asked was not done and never will be."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: its time in seconds, who did it, and what."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.3f} s  {self.who:8}  {self.what}"


class Blow(StrEnum):
    """What may befall a process."""

    CRASH = "crash"
    PAUSE = "pause"
    INTERRUPT = "interrupt"
    CLOCK = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A process is struck before it sends its message number *step*.

    Args:
        process: Which one.
        step: Counted from 1.
        blow: What befalls it.
        seconds: How long it is paused, how far its wall clock is set, or when after the message a Ctrl-C comes.
    """

    process: str
    step: int
    blow: Blow
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A service is away, and forgets who listened.

    Args:
        service: Which one.
        begins: When it goes.
        ends: When it is back.
        forgets: Also what it had not written to its disk.
    """

    service: str
    begins: float
    ends: float
    forgets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What becomes of messages: the chance of each. What is left over arrives and is answered.

    Args:
        lost: It does not arrive.
        unanswered: It is carried out, and the answer is lost.
        late: It is carried out after minutes, and the answer finds nobody.
        twice: It is carried out twice.
        refused: The service says no.
        slow: It takes seconds.
    """

    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    refused: float = 0.0
    slow: float = 0.0


CALM = Weather()


class Clock:
    """The clocks of one process: they may run at another speed, and the wall clock may be set."""

    def __init__(self, world: World, rate: float, offset: float) -> None:
        self._world = world
        self._rate = rate
        self._offset = offset
        self.set_by = 0.0

    def now(self) -> float:
        """Seconds, from somewhere."""
        return self._offset + self._world.now * self._rate

    def wall_ms(self) -> int:
        """Milliseconds, as this host believes."""
        return _EPOCH_MS + int((self._world.now + self.set_by) * 1000)

    def sleep(self, seconds: float) -> None:
        """Give the turn back for so long by this clock."""
        self._world.block(max(seconds, 0.0) / self._rate)

    def random(self) -> float:
        """A number of the run."""
        return self._world.random.random()


class Process:
    """One process on a host of its own."""

    def __init__(self, world: World, name: str, faults: dict[int, Fault], *, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.clock = Clock(world, rate, offset=world.random.randrange(1000, 2000))
        self.alive = True
        self.main: Thread | None = None
        self.paused_until = 0.0
        self.steps = 0
        self.in_a_hurry = False
        """No pause before the next message: it is what a promise assumes."""
        self._faults = faults
        self._put_off: Fault | None = None
        self._deaf = self._interrupted = False

    def step(self) -> None:
        """Be struck, if it is time for it."""
        if not self.alive:
            raise Halt
        self.steps += 1
        fault = self._faults.get(self.steps) or self._put_off
        self._put_off = None
        if fault is None:
            return
        match fault.blow:
            case Blow.CRASH:
                self.die()
            case Blow.PAUSE if self.in_a_hurry:
                self._put_off = fault
            case Blow.PAUSE:
                self.note(f"is stopped for {fault.seconds:.1f} s")
                self.paused_until = self.world.now + fault.seconds
                self.world.block(0.0)
                self.note("continues")
            case Blow.INTERRUPT:
                self.world.at(self.world.now + fault.seconds, self._interrupt)
            case Blow.CLOCK:
                self.note(f"its wall clock is set by {fault.seconds:.0f} s")
                self.clock.set_by += fault.seconds

    def die(self) -> None:
        """End here and now, without a last word."""
        self.note("dies")
        self.alive = False
        self.world.ended(self)
        self.world.block(0.0)

    def _interrupt(self) -> None:
        """Raise KeyboardInterrupt where the main thread waits."""
        if self.main is not None:
            self.note("is interrupted")
            if self._deaf:
                self._interrupted = True
            else:
                self.world.resume(self.main, self.main.turn, KeyboardInterrupt())

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Put interrupts off until the end."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def note(self, what: str) -> None:
        """Write into the history."""
        self.world.note(self.name, what)


class Service:
    """Somewhere that messages are sent to: does one at a time, each as a whole."""

    def __init__(self, world: World, name: str, weather: Weather = CALM, *, patience: float = 10.0) -> None:
        self.world = world
        self.name = name
        self.weather = weather
        self.patience = patience
        self.away = False

    def call(self, process: Process, work: Callable[[], T], *, prompt: bool = False) -> T:
        """Have *work* done at the service and return its answer.

        Args:
            process: Who asks.
            work: What is asked.
            prompt: What is sent is in time, or never comes.

        Raises:
            NoAnswer: It did not come.
            Unreachable: The service is away, or refused.
        """
        process.step()
        world, dice, weather = self.world, self.world.random.random, self.weather
        thread, turn = world.expected()
        travel, way_back = self._travel(prompt=prompt), self._travel(prompt=prompt)
        draw = dice()

        def arrive(answered: bool) -> None:
            if self.away:
                if answered:
                    world.at(world.now + way_back, lambda: world.resume(thread, turn, Unreachable(self.name)))
                return
            try:
                answer: Any = work(), None
            except Exception as error:  # noqa: BLE001 - it is the answer
                answer = None, error
            if answered:
                world.at(world.now + way_back, lambda: world.resume(thread, turn, answer))

        fates = itertools.accumulate(
            (weather.lost, weather.unanswered, weather.refused, *(() if prompt else (weather.late, weather.twice)))
        )
        fate = next((number for number, bound in enumerate(fates) if draw < bound), None)
        patience = self.patience
        match fate:
            case 0:
                process.note(f"sends to {self.name}: lost")
                patience *= dice()
            case 1:
                process.note(f"sends to {self.name}: the answer will be lost")
                world.at(world.now + travel, lambda: arrive(False))
                patience = travel + patience * dice()
            case 2:
                world.at(world.now + travel, lambda: world.resume(thread, turn, Unreachable(self.name)))
            case 3:
                late = 15 + 285 * dice()
                process.note(f"sends to {self.name}: it will come {late:.0f} s late")
                world.at(world.now + late, lambda: arrive(False))
            case 4:
                again = 60 * dice() ** 3
                process.note(f"sends to {self.name}: it will come twice, again in {again:.1f} s")

                def arrive_twice() -> None:
                    if not self.away:  # a client that can't connect has sent nothing
                        world.at(world.now + again, lambda: arrive(False))
                    arrive(True)

                world.at(world.now + travel, arrive_twice)
            case _:
                world.at(world.now + travel, lambda: arrive(True))
        answer = world.block(patience)
        match answer:
            case None:
                raise NoAnswer(self.name)
            case Unreachable():
                raise answer
            case (result, None):
                return result  # type: ignore[no-any-return]
            case (_, error):
                raise error
        raise AssertionError(answer)

    def _travel(self, *, prompt: bool) -> float:
        dice = self.world.random.random
        if dice() < self.weather.slow:
            return (1.0 if prompt else 0.4 * self.patience) * dice()
        return 0.001 + 0.01 * dice() ** 2


class Thread:
    """A simulated thread of a process."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process = process
        self.turn = 0
        self._work = work
        self._coroutine = greenlet(self._run, process.world.hub)

    def go_on(self, answer: Any) -> None:
        """Run until it blocks the next time. For the hub alone."""
        self.turn += 1
        self._coroutine.switch(answer)

    def give_back(self) -> Any:
        """Block, in the thread itself; return the answer that it goes on with."""
        return self.process.world.hub.switch()

    @property
    def ended(self) -> bool:
        """Whether its work is done."""
        return bool(self._coroutine.dead)

    def end(self) -> None:
        """Raise Halt where it blocks."""
        if self._coroutine and not self._coroutine.dead:
            self._coroutine.throw(Halt)

    def _run(self, _: Any) -> None:
        try:
            self._work()
        except Halt:
            return
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - nothing may escape
            self.process.note(f"ends with {error!r}")
            self.process.world.escaped.append(f"{self.process.name} ended with {error!r}")


class SimulatedHost:
    """In place of the machine on which processes run: names them, and tells who of them has ended.

    Args:
        world: Whose process asks is the one that runs.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.processes: list[Process] = []
        self.is_one = False
        """Whether all processes are on one host, where each can be looked up; else each is on its own."""

    def owner(self, statement: str = "", application: str = "") -> Owner:
        """See :meth:`Host.owner`."""
        return owner_of(self._world.expected()[0].process, statement)

    def is_dead(self, process: str) -> bool:
        """See :meth:`Host.is_dead`."""
        return self.is_one and not any(one.alive for one in self.processes if one.name == process)

    def new_id(self) -> uuid.UUID:
        """See :meth:`Host.new_id`."""
        return uuid.UUID(int=self._world.random.getrandbits(128), version=4)


def owner_of(process: Process, statement: str = "") -> Owner:
    """Return the owner information of *process*."""
    name = process.name
    return Owner(user=name, host=name, pid=1, application="sim", statement=statement, process=name)


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.host = SimulatedHost(self)
        self.now = 0.0
        self.history: list[Event] = []
        self.hub = getcurrent()
        self.mourners: list[Callable[[Process], None]] = []
        """Told of each process that dies."""
        self.escaped: list[str] = []
        """What ended a thread that should have been handled."""
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._threads: list[Thread] = []
        self._running: Thread | None = None

    def note(self, who: str, what: str) -> None:
        """Write into the history."""
        self.history.append(Event(self.now, who, what))

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have *action* done at *time*."""
        heapq.heappush(self._agenda, (time, next(self._order), action))

    def start(self, process: Process, work: Callable[[], None], *, after: float = 0.0) -> None:
        """Run *work* as a thread of *process*."""
        thread = Thread(process, work)
        self._threads.append(thread)
        process.main = process.main or thread
        self.at(self.now + after, lambda: self.resume(thread, 0, None))

    def block(self, seconds: float) -> Any:
        """Give the turn back; return what the thread is resumed with, None after *seconds*."""
        thread, turn = self.expected()
        self.at(self.now + seconds, lambda: self.resume(thread, turn, None))
        answer = thread.give_back()
        if not thread.process.alive:
            raise Halt
        if isinstance(answer, KeyboardInterrupt):
            raise answer
        return answer

    def expected(self) -> tuple[Thread, int]:
        """Return what resumes the present thread where it blocks next."""
        assert self._running is not None
        return self._running, self._running.turn

    def resume(self, thread: Thread, turn: int, answer: Any) -> None:
        """Give *thread* its turn, unless it went on from there already; later if its process is stopped."""
        process = thread.process
        if thread.turn != turn or not process.alive or thread.ended:
            return
        if process.paused_until > self.now:
            self.at(process.paused_until, lambda: self.resume(thread, turn, answer))
            return
        self._running = thread
        thread.go_on(answer)

    def run(self, *, until: float) -> None:
        """Do what is on the agenda, as far as *until*."""
        while self._agenda and self._agenda[0][0] <= until:
            time, _, action = heapq.heappop(self._agenda)
            self.now = max(self.now, time)
            action()
        self.now = max(self.now, until)

    def ended(self, process: Process) -> None:
        """Tell of a death."""
        for mourner in self.mourners:
            mourner(process)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Leave no thread behind."""
        try:
            yield
        finally:
            for thread in self._threads:
                thread.process.alive = False
            for thread in self._threads:
                self._running = thread
                thread.end()
            self._threads.clear()
            self._agenda.clear()


class OfThread:
    """In place of ``threading.local``: simulated threads are one for the interpreter."""

    def __init__(self, world: World) -> None:
        vars(self).update(_world=world, _values={})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[self._world.expected()[0], name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[self._world.expected()[0], name] = value
