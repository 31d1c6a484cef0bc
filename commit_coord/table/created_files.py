"""Files of a transaction, written down as they are created so that a failure leaves none behind.

PyIceberg writes data files in a pool of threads, and does not wait for the others when one of them fails:

1. Thread A fails, and the call raises.   2. The transaction deletes what was created.   3. Thread B, which was just
starting, creates its file: nobody will delete it.   So the files of a transaction that has ended can't be created any
more. Where B has its file open at step 2, the object may only appear when it closes it: so the deletion waits for that,
but not for ever: B may have failed, and left the file open.
"""

from __future__ import annotations

import copy
from threading import Condition, get_ident
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream

from commit_coord.coordinator import delete_quietly
from commit_coord.errors import CommitNotApplied
from commit_coord.iceberg.storage import cut_off

CLOSED_WITHIN_S = 60.0
"""Seconds that a deletion waits for threads with open files. Then it continues; files closed later may stay."""


class CreatedFiles:
    """The files that one transaction has created."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._found: set[str] = set()  # of them, those that were there before: they are not deleted
        self._writers: list[int] = []  # the threads that have a file open, once for each
        self._abandoned = False
        self._changed = Condition()

    def recording(self, io: FileIO) -> FileIO:
        """Return *io* with the locations of new files written down before the files exist.

        It raises CommitNotApplied for a location at which no file can be, see :func:`cut_off`.

        A copy of the object with one attribute in front: PyIceberg asks for the class of a FileIO to choose its
        readers.
        """
        recording = copy.copy(io)
        new_output = io.new_output

        def record(location: str) -> OutputFile:
            if (reason := cut_off(location)) is not None:
                raise CommitNotApplied(f"nothing was written: {reason}")
            self._paths.append(location)
            return _Output(new_output(location), self)

        recording.new_output = record  # type: ignore[method-assign]
        return recording

    def create(self, file: OutputFile, overwrite: bool) -> OutputStream:
        """Create *file*, and return its stream.

        Raises:
            InterruptedError: The transaction has ended.
        """
        thread = get_ident()
        with self._changed:
            if self._abandoned:
                raise InterruptedError(f"{file.location} is not created: its transaction has ended")
            self._writers.append(thread)
        try:
            stream = file.create(overwrite)
        except FileExistsError:
            self._found.add(file.location)
            self._end(thread)
            raise
        except BaseException:
            self._end(thread)
            raise
        self._found.discard(file.location)
        return _Stream(stream, lambda: self._end(thread))

    def _end(self, thread: int) -> None:
        with self._changed:
            self._writers.remove(thread)
            self._changed.notify_all()

    def mark(self) -> int:
        """Return how many files there are, for :meth:`delete`."""
        return len(self._paths)

    def forget(self) -> None:
        """Keep the files: the table may refer to them."""
        self._paths = []

    def delete(self, io: FileIO, since: int = 0) -> None:
        """Delete the files: it is proven that nothing refers to them. First wait until other threads have closed them.

        It waits at most :data:`CLOSED_WITHIN_S`, and not for what this thread has open: nobody else would close that.

        Args:
            io: Deletes.
            since: Keep as many, which were there at a :meth:`mark`.
        """
        try:
            with self._changed:
                self._changed.wait_for(lambda: all(thread == get_ident() for thread in self._writers), CLOSED_WITHIN_S)
        finally:
            paths, self._paths = self._paths[since:], self._paths[:since]
            for path in filter(lambda path: path not in self._found, paths):
                delete_quietly(io, path)

    def abandon(self, io: FileIO) -> None:
        """Delete the files, as :meth:`delete` does, and refuse to create more."""
        with self._changed:
            self._abandoned = True
        self.delete(io)


class _Output(OutputFile):
    """A file that is created only as long as its transaction goes on."""

    def __init__(self, file: OutputFile, created: CreatedFiles) -> None:
        super().__init__(file.location)
        self._file = file
        self._created = created

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def to_input_file(self) -> InputFile:
        return self._file.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        return self._created.create(self._file, overwrite)


class _Stream:
    """A stream whose end is made known."""

    def __init__(self, stream: OutputStream, ended: Any) -> None:
        self._stream = stream
        self._ended = ended
        self.write = stream.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        ended, self._ended = self._ended, None
        try:
            self._stream.close()
        finally:
            if ended is not None:
                ended()

    def __enter__(self) -> OutputStream:
        return self._stream  # Arrow writes into a stream of its own without a detour through Python

    def __exit__(self, *error: object) -> None:
        self.close()
