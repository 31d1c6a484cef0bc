"""The catalogs that are served, each under the prefix of its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.load import load_catalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.model import Resource
from commit_coord.rest.errors import NoSuchWarehouse
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.turns import Lines


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A catalog, the cached answers with its metadata, and the queues of the commits to its tables."""

    catalog: CoordinatedCatalog
    answers: TableAnswers
    lines: Lines

    @property
    def prefix(self) -> str:
        """The first part of its paths, percent-encoded."""
        return quote(self.catalog.name, safe="")

    def spelled(self, name: Identifier) -> tuple[str, ...]:
        """Return the name of a table, view or namespace in the spelling that the catalog stores.

        Args:
            name: The name; of a namespace, all its levels as one.

        Raises:
            ValueError: Nothing can have this name.
        """
        return self.catalog.spelled(Resource.table(name) if len(name) > 1 else Resource(name)).path


class Warehouses:
    """The catalogs that one process serves.

    Args:
        names: The catalogs' names in PyIceberg's configuration; the first one is the default.
        most_waiting: How many commits may wait for their turn at one table.
        properties: Of all catalogs, before those in the configuration.
    """

    def __init__(
        self, names: Sequence[str], most_waiting: int = 0, properties: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._names, self._properties = tuple(names), dict(properties)
        self._most_waiting = most_waiting
        self._opened: dict[str, Warehouse] = {}
        self._ends = ExitStack()

    def open(self) -> None:
        """Open all catalogs.

        Raises:
            ConfigError: A catalog cannot be opened. Then none is open.
        """
        with ExitStack() as opening:
            for name in self._names:
                catalog = load_catalog(name, **self._properties)
                opening.callback(catalog.close)
                reserved_ms = catalog.settings.commit_reserved_turn_ms
                self._opened[name] = Warehouse(
                    catalog,
                    TableAnswers(catalog.file_io),
                    Lines(SYSTEM_CLOCK, reserved_ms=reserved_ms, most_waiting=self._most_waiting),
                )
            self._ends = opening.pop_all()

    def close(self) -> None:
        """Release every lock and close every connection."""
        self._opened.clear()
        self._ends.close()

    @property
    def is_one(self) -> bool:
        """Whether there is one catalog. Then a path without a prefix can mean no other table of the same name."""
        return len(self._names) == 1

    def chosen(self, name: str | None) -> Warehouse:
        """Return the warehouse with this *name*; without a name, the default.

        Raises:
            NoSuchWarehouse: No warehouse has this name.
        """
        found = self._opened.get(name or self._names[0])
        if found is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {name}")
        return found

    def named(self, name: str | None) -> Warehouse:
        """Return the warehouse with this *name*; the default if there is none."""
        return self._opened.get(name or "") or self._opened[self._names[0]]

    def __iter__(self) -> Iterator[Warehouse]:
        """Yield all warehouses."""
        return iter(tuple(self._opened.values()))
