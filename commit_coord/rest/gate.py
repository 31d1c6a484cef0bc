"""Who comes in: the one place where a request is checked against what its route needs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from pyiceberg.typedef import Identifier

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.events import AccessRefused
from commit_coord.model import Resource
from commit_coord.rest.access import ANYBODY, Access, Caller, Forbidden, Place
from commit_coord.rest.identities import Identities
from commit_coord.rest.needs import Needs
from commit_coord.rest.settings import is_loopback
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.wire import Request

logger = logging.getLogger(__name__)

_AROUND = re.compile(r"^[\s\x00-\x20]+|[\s\x00-\x20]+$")
"""What PyIceberg or a metastore strips from a name."""


class Gate:
    """Lets requests in.

    Args:
        warehouses: Those that are served.
        identities: Who is known; None is a server that knows nobody, and is reached from this machine alone.
    """

    def __init__(self, warehouses: Warehouses, identities: Identities | None) -> None:
        self._warehouses = warehouses
        self._identities = identities

    def refuse_browsers(self, request: Request) -> None:
        """Return unless a web page that is no page of this server has sent *request*.

        A browser sends with it what proves its user: a certificate, what a proxy knows, or that it is on this machine.

        Raises:
            Forbidden: One has.
        """
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign or (origin is not None and origin.partition("://")[2] != host):
            raise Forbidden("a web page of another origin may not ask this server")
        if self._identities is None and not is_loopback(_hostname(host)):
            raise Forbidden(f"without authentication this server answers to loopback names only, and not to {host!r}")

    def caller(self, request: Request) -> Caller:
        """Return who sent *request*; as :meth:`Identities.caller`."""
        return ANYBODY if self._identities is None else self._identities.caller(request)

    def renew_keys(self) -> None:
        """Fetch the keys of the issuer; blocks."""
        if self._identities is not None and self._identities.oidc is not None:
            self._identities.oidc.renew()

    def check(self, needs: Needs, request: Request, caller: Caller, warehouse: Warehouse) -> None:
        """Return if *caller* may do what *request* asks for.

        Raises:
            Forbidden: It may not.
        """
        for namespace, access in needs.of(request):
            place = self.place(warehouse, namespace)
            if access > Access.NONE and not caller.grants.allow(place, access):
                who = caller.name or "this client"
                raise Forbidden(f"{who} may not {access} {'/'.join((place[0], '.'.join(place[1:]))).rstrip('/')}")

    def sees(self, caller: Caller, warehouse: Warehouse) -> Callable[[Identifier], bool]:
        """Return a function that says of which namespaces *caller* may know."""
        return lambda namespace: caller.grants.allow(self.place(warehouse, namespace), Access.SEE)

    @staticmethod
    def place(warehouse: Warehouse, namespace: Identifier) -> Place:
        """Return where *namespace* is: under the names that the catalog keeps, whatever a client calls it.

        Raises:
            Forbidden: It is a name in another catalog of a metastore, which is behind ``@``.
        """
        joined = ".".join(namespace)
        if not joined:
            return (warehouse.catalog.name,)
        spelled = warehouse.catalog.spelled(Resource((joined,))).path[0]
        levels = tuple(_AROUND.sub("", level) for level in spelled.split("."))
        if levels[0].startswith("@"):
            raise Forbidden("a namespace begins with @, which leads a metastore to another catalog")
        return (warehouse.catalog.name, *levels)

    def audit(self, request: Request, caller: Caller | None, error: Exception) -> None:
        """Write down that *request* was refused, in the audit log of the catalog that it names; blocks."""
        warehouse = self._warehouses.named(request.names.get("prefix") or request.query.get("warehouse"))
        warehouse.catalog.tell_access_refused(
            AccessRefused(
                client=caller.name if caller else "",
                address=request.peer,
                request=f"{request.method} {request.path}",
                request_id=request.request_id,
                at_ms=SYSTEM_CLOCK.wall_ms(),
                why=str(error),
                known=caller is not None,
            )
        )


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
