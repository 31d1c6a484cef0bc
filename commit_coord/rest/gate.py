"""The one place where the server checks whether the sender of a request may do what its route does."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.events import AccessRefused
from commit_coord.model import Resource
from commit_coord.rest.access import (
    ANYBODY,
    Access,
    Caller,
    Forbidden,
    GrantPath,
    IssuerUnavailable,
    KeysWanted,
    NotAuthenticated,
)
from commit_coord.rest.identities import Identities
from commit_coord.rest.needs import Needs
from commit_coord.rest.settings import is_loopback
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.wire import Request
from commit_coord.rest.writing import BackgroundWriter

logger = logging.getLogger(__name__)

_AROUND = re.compile(r"^[\s\x00-\x20]+|[\s\x00-\x20]+$")
"""The characters that PyIceberg or a metastore removes from the ends of a name."""

_PLACES = 256
"""Names of namespaces whose places are remembered. A name is shorter than the head of a request."""
_HOSTS = 16
"""Values of ``Host`` that are remembered; a server has few names."""
_MOST_UNRECORDED = 1000
"""Refusals that may wait for the audit log, which is synced to its disk for each of them."""


class Gate:
    """Checks requests.

    Args:
        warehouses: The catalogs that are served.
        identities: Identifies senders; None for a server without authentication, which serves this machine only.
    """

    def __init__(self, warehouses: Warehouses, identities: Identities | None) -> None:
        self._warehouses = warehouses
        self._identities = identities
        self._audits = BackgroundWriter("audit", _record, _MOST_UNRECORDED, self._summarize)
        self._placed = lru_cache(_PLACES)(_place)
        """Of this gate, so that no catalog stays after it is closed."""

    def refuse_browsers(self, request: Request, *, may_follow_links: bool = False) -> None:
        """Refuse a request that a web page of another origin has sent.

        A browser adds the proof of its user to such a request: a certificate, the header of a proxy, or simply that it
        runs on this machine.

        Args:
            request: The request.
            may_follow_links: Allow a GET for which the browser leaves the other page, because its user follows a link.

        Raises:
            Forbidden: A web page of another origin has sent *request*. Or the server has no authentication, and the
                ``Host`` is not a loopback name.
        """
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if may_follow_links and _leaves_a_page(request):
            foreign = False
        if foreign or (origin is not None and origin.partition("://")[2] != host):
            raise Forbidden("a web page of another origin may not ask this server")
        if self._identities is None and not _is_loopback(host):
            raise Forbidden(f"without authentication this server answers to loopback names only, and not to {host!r}")

    def caller(self, request: Request) -> Caller:
        """Return the sender of *request*; see :meth:`Identities.caller`."""
        return ANYBODY if self._identities is None else self._identities.caller(request)

    def check(self, needs: Needs, request: Request, caller: Caller, warehouse: Warehouse) -> None:
        """Return if *caller* may do what *request* asks for.

        Raises:
            Forbidden: *caller* may not.
        """
        for namespace, access in needs.of(request):
            place = self._placed(warehouse.catalog, namespace)
            if access > Access.NONE and not caller.grants.allow(place, access):
                who = caller.name or "this client"
                raise Forbidden(f"{who} may not {access} {'/'.join((place[0], '.'.join(place[1:]))).rstrip('/')}")

    def sees(self, caller: Caller, warehouse: Warehouse) -> Callable[[Identifier], bool]:
        """Return a function that tells whether *caller* may know that a namespace exists."""

        def seen(namespace: Identifier) -> bool:
            try:
                return caller.grants.allow(self._placed(warehouse.catalog, namespace), Access.SEE)
            except Forbidden:
                return False  # nobody reaches it

        return seen

    def allows(self, caller: Caller, warehouse: Warehouse, namespace: Identifier, access: Access) -> bool:
        """Return whether *caller* has *access* to *namespace*; ``()`` is the whole catalog, with all namespaces."""
        allow = caller.grants.allow if namespace else caller.grants.allow_everywhere
        try:
            return allow(self._placed(warehouse.catalog, namespace), access)
        except Forbidden:
            return False

    def sees_all(self, request: Request) -> bool:
        """Return whether the sender of *request* is known, and may know that each catalog exists."""
        try:
            caller = self.caller(request)
        except (NotAuthenticated, KeysWanted, IssuerUnavailable):
            return False
        return all(self.sees(caller, warehouse)(()) for warehouse in self._warehouses)

    @staticmethod
    def place(warehouse: Warehouse, namespace: Identifier) -> GrantPath:
        """Return the place of *namespace*, in the spelling that the catalog stores.

        Raises:
            Forbidden: The name begins with ``@``: a metastore then looks in another catalog.
        """
        return _place(warehouse.catalog, namespace)

    def audit(self, request: Request, caller: Caller | None, error: Exception) -> None:
        """Record in the audit log of the catalog that *request* names that it was refused; does not block.

        The event is emitted at once, so the metric counts every refusal. If too many are refused at once, the audit log
        of the default catalog contains the number of the others.
        """
        warehouse = self._warehouses.named(request.names.get("prefix") or request.query.get("warehouse"))
        event = AccessRefused(
            client=caller.name if caller else "",
            address=request.peer,
            request=f"{request.method} {request.path}",
            request_id=request.request_id,
            at_ms=SYSTEM_CLOCK.wall_ms(),
            why=str(error),
            known=caller is not None,
        )
        warehouse.catalog.events.emit(event)
        self._audits.put((warehouse.catalog, event))

    def flush(self, timeout_s: float) -> bool:
        """Return True once all refusals so far are recorded, False after *timeout_s* seconds."""
        return self._audits.flush(timeout_s)

    def _summarize(self, count: int) -> None:
        self._warehouses.named(None).catalog.record_refusals_left_out(count)


def _place(catalog: CoordinatedCatalog, namespace: Identifier) -> GrantPath:
    """See :meth:`Gate.place`."""
    joined = ".".join(namespace)
    if not joined:
        return (catalog.name,)
    spelled = catalog.spelled(Resource((joined,))).path[0]
    levels = tuple(_AROUND.sub("", level) for level in spelled.split("."))
    if levels[0].startswith("@"):
        raise Forbidden("a namespace must not begin with @: a metastore would take it for the name of another catalog")
    return (catalog.name, *levels)


def _record(refusal: tuple[CoordinatedCatalog, AccessRefused]) -> None:
    catalog, event = refusal
    catalog.record_access_refused(event)


def _leaves_a_page(request: Request) -> bool:
    """Return whether a browser shows the answer in place of the page that it has left, and no script reads it."""
    headers = request.headers
    return (
        request.method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


@lru_cache(_HOSTS)
def _is_loopback(host: str) -> bool:
    """Return whether a ``Host`` header names this machine by a loopback address or name."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
