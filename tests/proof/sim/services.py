"""What the simulated processes share: a file store and a pointer store, and each process's client of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore.writers import LockOnlyWriters
from commit_coord.locks.base import Lease
from commit_coord.model import LeaseState
from commit_coord.protocol.commit import SwapResult
from commit_coord.testing.history import Change
from tests.proof.sim.world import NoAnswer, Process, Service, Unreachable


class Condition(StrEnum):
    """What the pointer store makes of the condition of a swap."""

    COMPARES = "compares"
    IGNORES = "ignores"


class Files:
    """Files by their path; each is there as a whole or not at all."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.content: dict[str, bytes] = {}
        self.deleted: dict[str, bytes] = {}
        """What was deleted, for the proof."""

    def write(self, path: str, data: bytes) -> None:
        """Carry out a write."""
        if self.content.setdefault(path, data) != data:
            raise FileExistsError(path)

    def read(self, path: str) -> bytes:
        """Carry out a read."""
        try:
            return self.content[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def delete(self, path: str) -> None:
        """Carry out a deletion; fine when there is no such file."""
        if path in self.content:
            self.deleted[path] = self.content.pop(path)


class SimulatedFileIO(FileIO):
    """One process's client of the file store; without a process, that of the judge when all is over."""

    def __init__(self, process: Process | None, files: Files) -> None:
        super().__init__()
        self._process = process
        self._files = files

    def call(self, work: Callable[[], Any]) -> Any:
        """Have *work* done at the store."""
        if self._process is None:
            return work()
        try:
            return self._files.service.call(self._process, work)
        except (NoAnswer, Unreachable) as error:
            raise OSError("the file store did not answer") from error

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _Input(location, self)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return _Output(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file; fine when there is none."""
        path = location if isinstance(location, str) else location.location
        self.call(lambda: self._files.delete(path))

    def data_of(self, path: str) -> bytes:
        data: bytes = self.call(lambda: self._files.read(path))
        return data

    def put(self, path: str, data: bytes) -> None:
        self.call(lambda: self._files.write(path, data))


class _Input(InputFile):
    def __init__(self, location: str, files: SimulatedFileIO) -> None:
        super().__init__(location)
        self._io = files

    def __len__(self) -> int:
        return len(self._io.data_of(self.location))

    def exists(self) -> bool:
        try:
            self._io.data_of(self.location)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._io.data_of(self.location))


class _Output(OutputFile):
    def __init__(self, location: str, files: SimulatedFileIO) -> None:
        super().__init__(location)
        self._io = files

    def __len__(self) -> int:
        return len(self._io.data_of(self.location))

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._io)

    def create(self, overwrite: bool = False) -> Any:
        return _Stream(self)

    def put(self, data: bytes) -> None:
        self._io.put(self.location, data)


class _Stream(io.BytesIO):
    """Written when it is closed."""

    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def __exit__(self, *raised: object) -> None:
        if raised[0] is None:
            self.close()

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._output.put(data)


class Pointers:
    """The metadata location of the one table, and every change of it."""

    def __init__(self, service: Service, condition: Condition, location: str) -> None:
        self.service = service
        self.condition = condition
        self.location = location
        self.changes: list[Change] = []

    def swap(self, who: str, base: str, location: str, *, compares: bool) -> bool:
        """Carry out a swap that arrives; return whether the pointer is *location* by it."""
        before = self.location
        named = f"{short(base)} → {short(location)} of {who}"
        if compares and before != base:
            self.service.world.note("pointer", f"{named}: MOVED, it is {short(before)}")
            return False
        self.location = location
        self.changes.append(Change(by=who, base=base, before=before, location=location))
        over = "" if before == base else f" over {short(before)}"
        self.service.world.note("pointer", f"{named}{over}: done")
        return True


class Client:
    """One process's client of the pointer and file stores: a :class:`~commit_coord.coordinator.PointerStore`.

    It is also the common lock of writers that only lock, as :class:`LockOnlyWriters` asks for it.

    Where the store ignores the condition, it does what ``catalog/hive.py`` does: it asks whether the latch is still its
    own, looks at the pointer, and sends the change; which is in time, as is assumed there, if the latch was.
    """

    def __init__(self, process: Process, pointers: Pointers, files: Files, *, shares_latch: bool) -> None:
        self.io = SimulatedFileIO(process, files)
        self.latch: Lease | None = None
        """The latch that this process was granted last."""
        self.take_latch: Callable[[], Lease] | None = None
        self._process = process
        self._pointers = pointers
        self._shares_latch = shares_latch
        self._writers = LockOnlyWriters(self)

    def compare_and_set(self) -> bool:
        """Return whether the store honours the condition of a swap."""
        return self._pointers.condition is not Condition.IGNORES

    def pointer(self, table: Identifier) -> str | None:
        """Read the pointer."""
        return self._pointers.service.call(self._process, lambda: self._pointers.location)

    def swap(self, table: Identifier, base: str | None, location: str) -> SwapResult:
        """Compare and set."""
        assert base is not None
        if self._pointers.condition is Condition.IGNORES:
            return self._check_and_set(table, base, location)
        return self._send(base, location, compares=True)

    def _check_and_set(self, table: Identifier, base: str, location: str) -> SwapResult:
        assert self.latch is not None
        self.latch.ensure_active(0)
        if self.pointer(table) != base:
            return SwapResult.MOVED
        with self._process.deaf():
            result = self._send(base, location, compares=False)
        if result is SwapResult.SWAPPED:
            try:
                self.latch.ensure_active(0)
                result = SwapResult.SWAPPED if self.pointer(table) == location else SwapResult.LOST_REPLY
            except Exception:  # noqa: BLE001 - it was sent: whatever fails now proves nothing
                result = SwapResult.LOST_REPLY
        if result is SwapResult.LOST_REPLY:
            self._writers.doubt(location)
        return result

    def _send(self, base: str, location: str, *, compares: bool) -> SwapResult:
        pointers, who = self._pointers, self._process.name
        self._process.note(f"sends {short(base)} → {short(location)}")
        try:
            done = pointers.service.call(
                self._process, lambda: pointers.swap(who, base, location, compares=compares), prompt=not compares
            )
        except NoAnswer:
            return SwapResult.LOST_REPLY
        finally:
            self._process.in_a_hurry = False
        return SwapResult.SWAPPED if done else SwapResult.MOVED

    def alter(self, base: str, location: str) -> SwapResult:
        """Set without a condition, as writers do that only lock."""
        return self._send(base, location, compares=False)

    def swap_once(self, base: str, location: str) -> SwapResult:
        """Compare and set, as writers do that take no lock."""
        return self._send(base, location, compares=True)

    def swap_under_leases(
        self, lease_ids: Sequence[int], table: Identifier, base: str | None, location: str
    ) -> SwapResult:
        """Nobody is fenced here."""
        raise NotImplementedError

    def wait_for_lock_only_writers(self, table: Identifier, location: str, lease: Lease) -> bool:
        """Do as ``catalog/hive.py``, where there are writers that only lock."""
        return self._shares_latch and self._writers.wait(table, location, lease)

    def is_common(self, lease: Lease) -> bool:
        """Return True: those writers take the same latch as ours."""
        return True

    def of(self, table: Identifier) -> AbstractContextManager[Lease]:
        """Return the latch: the one that is held, or another one."""
        if self.latch is not None and self.latch.state in (LeaseState.HELD, LeaseState.SUSPECT):
            return nullcontext(self.latch)
        assert self.take_latch is not None
        return self.take_latch()

    def prepare_metadata(
        self, table: Identifier, head: TableMetadata | None, made: TableMetadata, *, changes_phase: bool
    ) -> TableMetadata:
        """Add nothing."""
        return made

    def file_io(self, location: str) -> FileIO:
        """Return the file store."""
        return self.io


def short(location: str) -> str:
    """Return what a history calls a metadata file: its version and the beginning of its id."""
    return location.rpartition("/")[2].partition(".")[0][:10]
