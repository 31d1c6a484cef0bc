"""ALTER TABLE."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import TokenType

from commit_coord.sql.grammar.parts import PartParser
from commit_coord.sql.grammar.tokens import TokenReader
from commit_coord.sql.statement import (
    AddColumns,
    AddPartitions,
    ChangeColumn,
    Concatenate,
    CreateRef,
    DropPartitions,
    DropRef,
    ExpireSnapshots,
    PartitionClause,
    QualifiedName,
    Rename,
    ReplaceColumns,
    RollBack,
    SetFileFormat,
    SetPartitionSpec,
    SetProperties,
    SetSerde,
    Statement,
    TouchPartition,
)

_UNITS_MS = {"DAY": 86_400_000, "HOUR": 3_600_000, "MINUTE": 60_000}


class AlterParser:
    """Reads what comes behind ALTER TABLE."""

    def __init__(self, reader: TokenReader, parts: PartParser) -> None:
        self._reader = reader
        self._parts = parts

    def alter(self) -> Statement:
        """Return ``ALTER TABLE``."""
        table = self._parts.name()
        if (partition := self._parts.partition()) is not None:
            self._reader.need("CONCATENATE")
            return Concatenate(table, partition)
        actions: list[tuple[tuple[str, ...], Callable[[], Statement]]] = [
            (("RENAME", "TO"), lambda: Rename(table, self._parts.name())),
            (("ADD", "COLUMNS"), lambda: AddColumns(table, self._parts.columns())),
            (("REPLACE", "COLUMNS"), lambda: ReplaceColumns(table, self._parts.columns())),
            (("CHANGE",), lambda: self._change(table)),
            (("CONCATENATE",), lambda: Concatenate(table)),
            (("ADD",), lambda: self._add_partitions(table)),
            (("CREATE", "BRANCH"), lambda: self._create_ref(table, branch=True)),
            (("CREATE", "TAG"), lambda: self._create_ref(table, branch=False)),
            (("DROP", "BRANCH"), lambda: self._drop_ref(table, branch=True)),
            (("DROP", "TAG"), lambda: self._drop_ref(table, branch=False)),
            (("EXECUTE", "EXPIRE_SNAPSHOTS"), lambda: self._expire(table)),
            (("EXECUTE", "ROLLBACK"), lambda: RollBack(table, self._parts.moment_or_id())),
            (("DROP",), lambda: self._drop_partitions(table)),
            (("TOUCH",), lambda: TouchPartition(table, self._parts.needed_partition())),
            (("SET",), lambda: self._set(table)),
            (("UNSET", "TBLPROPERTIES"), lambda: SetProperties(table, dict.fromkeys(self._parts.keys()))),
        ]
        for words, rest in actions:
            if self._reader.skip(*words):
                return rest()
        raise self._reader.wrong(
            "RENAME TO, ADD COLUMNS, REPLACE COLUMNS, CHANGE, CONCATENATE, ADD PARTITION, DROP PARTITION, "
            "TOUCH PARTITION, SET, UNSET, CREATE or DROP BRANCH or TAG, EXECUTE EXPIRE_SNAPSHOTS or ROLLBACK, or "
            "PARTITION"
        )

    def _change(self, table: QualifiedName) -> Statement:
        self._reader.skip("COLUMN")
        name = self._reader.identifier("the name of a column")
        column = self._parts.column()
        after = None
        if self._reader.skip("FIRST"):
            after = ""
        elif self._reader.skip("AFTER"):
            after = self._reader.identifier("the name of a column")
        return ChangeColumn(table, name, column, after)

    def _add_partitions(self, table: QualifiedName) -> Statement:
        if_not_exists = self._reader.skip("IF", "NOT", "EXISTS")
        found: list[tuple[PartitionClause, str | None]] = []
        while self._reader.sees("PARTITION") or not found:
            partition = self._parts.needed_partition()
            found.append(
                (partition, self._reader.string("a quoted location") if self._reader.skip("LOCATION") else None)
            )
        return AddPartitions(table, tuple(found), if_not_exists)

    def _drop_partitions(self, table: QualifiedName) -> Statement:
        if_exists = self._reader.skip("IF", "EXISTS")
        found = [self._parts.needed_partition()]
        while self._reader.skip(","):
            found.append(self._parts.needed_partition())
        return DropPartitions(table, tuple(found), if_exists)

    def _set(self, table: QualifiedName) -> Statement:
        if self._reader.skip("PARTITION", "SPEC"):
            return SetPartitionSpec(table, self._parts.partitioned_by())
        if self._reader.skip("TBLPROPERTIES"):
            return SetProperties(table, self._parts.properties())
        if self._reader.skip("SERDEPROPERTIES"):
            return SetSerde(table, None, self._parts.properties())
        if self._reader.skip("SERDE"):
            serializer = self._reader.string("a quoted class name")
            return SetSerde(
                table, serializer, self._parts.properties() if self._reader.skip("WITH", "SERDEPROPERTIES") else {}
            )
        if self._reader.skip("FILEFORMAT"):
            return SetFileFormat(table, self._reader.identifier("a file format").lower())
        raise self._reader.wrong("TBLPROPERTIES, SERDEPROPERTIES, SERDE, FILEFORMAT or PARTITION SPEC")

    def _create_ref(self, table: QualifiedName, *, branch: bool) -> Statement:
        if_not_exists = self._reader.skip("IF", "NOT", "EXISTS")
        name = self._reader.identifier("the name of a branch or tag")
        snapshot: int | str | None = None
        if self._reader.skip("FOR", "SYSTEM_VERSION", "AS", "OF"):
            snapshot = self._reader.whole_number("the number of a snapshot", least=0)
        elif self._reader.skip("FOR", "TAG", "AS", "OF") or self._reader.skip("FOR", "BRANCH", "AS", "OF"):
            snapshot = self._reader.identifier("the name of a branch or tag")
        retain_ms = None
        if self._reader.skip("RETAIN"):
            number = self._reader.whole_number("a whole number above 0", least=1)
            for unit, unit_ms in _UNITS_MS.items():
                if self._reader.skip(unit) or self._reader.skip(unit + "S"):
                    retain_ms = number * unit_ms
                    break
            else:
                raise self._reader.wrong("DAYS, HOURS or MINUTES")
        return CreateRef(table, name, branch, snapshot, retain_ms, if_not_exists)

    def _drop_ref(self, table: QualifiedName, *, branch: bool) -> Statement:
        if_exists = self._reader.skip("IF", "EXISTS")
        return DropRef(table, self._reader.identifier("the name of a branch or tag"), branch, if_exists)

    def _expire(self, table: QualifiedName) -> Statement:
        if self._reader.skip("RETAIN", "LAST"):
            return ExpireSnapshots(table, retain_last=self._reader.whole_number("a whole number above 0", least=1))
        if not self._reader.sees("("):
            return ExpireSnapshots(table)
        begun = self._reader.at
        self._reader.need("(")
        if (token := self._reader.next) is not None and token.token_type is TokenType.STRING:
            # Hive writes several numbers as one text.
            parts = [part.strip() for part in token.text.split(",")]
            if all(part.isdecimal() and len(part) < 20 for part in parts):
                self._reader.at += 1
                self._reader.need(")")
                return ExpireSnapshots(table, snapshots=tuple(map(int, parts)))
        self._reader.at = begun
        to = self._parts.moment_or_id()
        return ExpireSnapshots(table, snapshots=(to,)) if isinstance(to, int) else ExpireSnapshots(table, before=to)
