"""Another table in the folder of a program's: what happens to one must leave the files of the other alone."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from commit_coord.testing.table_files import metadata
from commit_coord.testing.table_files.observed import Files, Observed, local
from tests.proof.rows.doing import NAMESPACE
from tests.proof.rows.findings import Finding
from tests.proof.rows.model.conditions import Always
from tests.proof.rows.program import Neighbourhood
from tests.proof.rows.read import readers

_SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))
_DATA_PATH = "write.data.path"


class Neighbour:
    """A table of one column, whose rows are 0, 1, 2 and so on.

    Args:
        catalogs: Of the program's clients.
        where: Where it lies.
        folder: Of the program's table.
        name: Of the program's table.
    """

    def __init__(self, catalogs: dict[str, Any], where: Neighbourhood, folder: Path, name: str) -> None:
        self._where, self._catalogs, self._name = where, catalogs, (NAMESPACE, f"{name}_neighbour")
        self._files = Files()
        self._rows = 0
        self._apart = folder.with_name(f"{folder.name}-neighbour")
        places = {"around": folder.parent, "data": self._apart, "inside": folder / "i", "foreign inside": folder / "i"}
        properties = {_DATA_PATH: f"file://{folder}/shared"} if where == "data" else {}
        if where.startswith("foreign"):
            foreign = SqlCatalog("foreign", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
            foreign.create_namespace(NAMESPACE)
            self._catalogs = dict.fromkeys(catalogs, foreign)
        self._catalogs["s"].create_table(
            self._name, _SCHEMA, location=f"file://{places.get(where, folder)}", properties=properties
        )

    @property
    def forbids_orphans(self) -> bool:
        """Return whether files of it may lie in the folder of the program's table."""
        return self._where != "around"

    def grow(self, client: str) -> set[str]:
        """Have *client* append a row; return the paths of the files that the table refers to."""
        rows = pa.table({"n": pa.array([self._rows], pa.int64())})
        self._catalogs[client].load_table(self._name).append(rows)
        self._rows += 1
        seen = self._observed
        old = {local(entry["metadata-file"]) for entry in seen.raw["metadata-log"]}
        return old | set(metadata.reachable(seen))

    @property
    def _observed(self) -> Observed:
        location: str = self._catalogs["s"].load_table(self._name).metadata_location
        return Observed(location, self._files)

    def judge(self) -> None:
        """Raise a finding if it lacks a file.

        Raises:
            Finding: It does.
        """
        seen = self._observed
        if missing := [path for path in metadata.reachable(seen) if not seen.files.exists(path)]:
            raise Finding("a neighbour lost files", f"{self._where}: {', '.join(map(local, missing))}")

    def read(self) -> None:
        """Raise a finding if PyIceberg does not read all of its rows, and nothing else.

        Raises:
            Finding: It does not.
        """
        found = readers.pyiceberg(self._observed.location, _SCHEMA, Always())
        if found != Counter(((1, number),) for number in range(self._rows)):
            raise Finding("a neighbour lost rows", f"{self._where}: {found} of {self._rows}")

    def close(self) -> None:
        """Leave nothing behind."""
        with suppress(Exception):
            self._catalogs["s"].drop_table(self._name)
        if self._where.startswith("foreign"):
            self._catalogs["s"].close()
        shutil.rmtree(self._apart, ignore_errors=True)
