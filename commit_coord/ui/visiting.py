"""A visit to the page and its answer, as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.model import Resource


class NotAllowed(Exception):
    """The visitor may not do this. Nothing was done."""


class Changed(Exception):
    """It is not any more as the visitor was shown it, or the server stops. Nothing was done."""


class NotFound(LookupError):
    """The page has nothing under this address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """The person who looks at the page.

    Args:
        name: For the audit log; "" on a server without authentication.
        sees: Tells whether the visitor may know that a catalog exists.
        reads: Tells whether the visitor may read a namespace of a catalog; ``()`` is the whole catalog.
        administers: Likewise, whether the visitor may free locks there.
        frees: Tells whether the visitor may free locks somewhere in a catalog.
    """

    name: str
    sees: Callable[[str], bool]
    reads: Callable[[str, Identifier], bool]
    administers: Callable[[str, Identifier], bool]
    frees: Callable[[str], bool]


ANYBODY = Visitor(
    name="", sees=lambda _: True, reads=lambda *_: True, administers=lambda *_: True, frees=lambda _: True
)
"""The visitor of a page without authentication, which only this machine reaches; the page may be read-only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request to the page.

    Args:
        method: In upper case.
        path: The names in the path below ``/ui``, decoded.
        query: The query parameters.
        form: The fields of the form; empty for a GET.
        visitor: Who asks.
    """

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    visitor: Visitor = ANYBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The answer to a visit."""

    body: bytes = b""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class VisitedCatalog(NamedTuple):
    """A catalog as one visitor may see it."""

    catalog: CoordinatedCatalog
    visitor: Visitor
    may_change: bool
    """Whether the page changes anything at all."""

    def reads(self, resource: Resource) -> bool:
        """Return whether the visitor may know what is locked there."""
        return self.visitor.reads(self.catalog.name, namespace_of(resource))

    def reads_tables(self, tables: Iterable[Identifier]) -> bool:
        """Return whether the visitor may read all of *tables*."""
        return all(self.visitor.reads(self.catalog.name, table[:-1]) for table in tables)

    @property
    def reads_all(self) -> bool:
        """Whether the visitor may read the whole catalog."""
        return self.visitor.reads(self.catalog.name, ())

    def administers(self, *resources: Resource) -> bool:
        """Return whether the visitor may free locks on all of *resources*; without any, on the whole catalog."""
        places = {namespace_of(one) for one in resources} or {()}
        return self.may_change and all(self.visitor.administers(self.catalog.name, place) for place in places)


def namespace_of(resource: Resource) -> Identifier:
    """Return the namespace in which *resource* lies, in levels."""
    return tuple(resource.path[0].split("."))
