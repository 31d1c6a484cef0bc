"""The access right that a route needs. The table of routes names it for each route; :mod:`.gate` checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.typedef import Identifier

from commit_coord.rest.access import Access
from commit_coord.rest.wire import Request


def in_path(request: Request) -> Sequence[Identifier]:
    """Return the namespace in the path."""
    return (request.namespace,)


def whole_catalog(request: Request) -> Sequence[Identifier]:
    """Return the root, which contains every namespace."""
    return ((),)


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be allowed, and where.

    Args:
        access: What must be allowed.
        where: Returns the namespaces that a request names, in its path, query or body.
        purging: What must be allowed instead if the request asks for files to be deleted.
        in_body: Whether *where* looks into the body. Otherwise the head is enough to decide.
    """

    access: Access
    where: Callable[[Request], Sequence[Identifier]] = in_path
    purging: Access | None = None
    in_body: bool = False

    def of(self, request: Request) -> Iterator[tuple[Identifier, Access]]:
        """Yield each namespace with what must be allowed there.

        Raises:
            MalformedRequest: The body does not name a namespace.
        """
        access = self.purging if self.purging is not None and request.purges else self.access
        for namespace in self.where(request):
            yield namespace, access


NOTHING = Needs(Access.NONE, where=whole_catalog)
"""The route is open to everybody."""
