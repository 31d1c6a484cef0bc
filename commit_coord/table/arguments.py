"""What the caller of a table or a transaction gives: a call means what its arguments were when it was made."""

from __future__ import annotations

from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

from pyiceberg.table import snapshots
from pyiceberg.types import transform_dict_value_to_str

from commit_coord.errors import InvalidArguments

if TYPE_CHECKING:
    import pyarrow as pa

_OF_PARTITIONS = ("CHANGED_PARTITION_COUNT_PROP", "PARTITION_SUMMARY_PROP")
_COMPUTED = frozenset(
    value
    for name, value in vars(snapshots).items()
    if name.startswith(("ADDED_", "DELETED_", "REMOVED_", "TOTAL_")) or name in _OF_PARTITIONS
) | {"operation", "self"}  # "self": PyIceberg can't load such a summary
"""Keys of a summary that no caller can set. Java refuses one that it computes, too."""


def kept(value: Any, *, rows: bool = True) -> Any:
    """Return *value* so that no change that its owner makes to it later is seen.

    Containers are copied at any depth, and what can be read once becomes a list; but for a stream of Arrow rows. Arrow
    tables are copied with their rows: those may lie in memory that belongs to NumPy, and Arrow does not tell which do.

    Args:
        value: What a caller has given.
        rows: Copy rows, too. If not, their owner does not change them.
    """
    if isinstance(value, Mapping):
        return {key: kept(item, rows=rows) for key, item in value.items()}
    if type(value) in (tuple, set):
        return type(value)(kept(item, rows=rows) for item in value)
    if isinstance(value, list | deque | KeysView | ValuesView | ItemsView | Iterator):
        return value if hasattr(value, "read_next_batch") else [kept(item, rows=rows) for item in value]
    is_table = hasattr(value, "to_batches") and hasattr(value, "replace_schema_metadata")
    return _copied(value) if rows and is_table else value


def _copied(rows: pa.Table) -> pa.Table:
    """Return *rows* in memory of their own; of slices only what they show."""
    import pyarrow as pa

    size = pa.MockOutputStream()
    _write(rows, size)
    buffer = pa.allocate_buffer(size.size())
    _write(rows, pa.FixedSizeBufferWriter(buffer))
    # PyIceberg hands columns to Rust, which wants decimals at multiples of 16 bytes; a stream has multiples of 8.
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
    return pa.ipc.open_stream(buffer, options=aligned).read_all()


def _write(rows: pa.Table, sink: pa.NativeFile) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=True)) as writer:
        writer.write_table(rows)


def summary_properties(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a snapshot that the caller has *given*, as texts: what table properties become, too.

    Raises:
        InvalidArguments: Iceberg computes one of them, or one has no text.
    """
    for key in given:
        if not isinstance(key, str):
            raise InvalidArguments("the name of a property of a snapshot is no text: give a text", key=repr(key))
        if key.lower() in _COMPUTED or key.startswith(snapshots.CHANGED_PARTITION_PREFIX):
            raise InvalidArguments("this property of a snapshot is computed: choose another name", key=key)
    try:
        return transform_dict_value_to_str(dict(given))
    except ValueError as error:
        raise InvalidArguments("a property of a snapshot has no value: leave it out", reason=error) from error


def refuse_no_name(ref: str | None) -> None:
    """Return if *ref* can be the name of a branch or tag, or names none.

    Raises:
        InvalidArguments: It is empty.
    """
    if ref == "":
        raise InvalidArguments("the name of a branch or tag is empty: name one, or leave the argument out for 'main'")


def listed(value: Iterable[Any] | None, kind: type, name: str) -> list[Any]:
    """Return *value*, what a caller has given as the argument *name*, as a list that he does not change.

    Raises:
        InvalidArguments: It is no list, or one of the values in it is no *kind*.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArguments("the argument is no list", argument=name, value=repr(value), accepted=kind.__name__)
    found = list(value)
    for item in found:
        if not isinstance(item, kind):
            raise InvalidArguments(
                "a value in the list has another type", argument=name, value=repr(item), accepted=kind.__name__
            )
    return found


def arrow_table(value: Any) -> pa.Table:
    """Return *value*, which is an Arrow table.

    Raises:
        InvalidArguments: It is none.
    """
    import pyarrow as pa

    if isinstance(value, pa.RecordBatchReader):
        raise InvalidArguments("a stream can be read once, and these rows are read twice: give reader.read_all()")
    if not isinstance(value, pa.Table):
        raise InvalidArguments("the rows are no Arrow table: give a pyarrow.Table", type=type(value).__name__)
    return value
