"""The table of pages, and what each of them answers.

================================ ==================================================
``/ui/``                         the catalogs
``/ui/CATALOG/``                 Now: who holds, who waits, who is dead
``/ui/CATALOG/events``           the same as server-sent events
``/ui/CATALOG/tables``           all tables
``/ui/CATALOG/table``            one table: commits, waits, files, phase
``/ui/CATALOG/request``          what became of a request
``/ui/CATALOG/free``             frees the locks of one request
``/ui/CATALOG/reap``             frees the locks of dead owners
``/ui/assets/NAME``              scripts and styles
================================ ==================================================
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.coordinator.history import is_beginning
from commit_coord.errors import CommitCoordError, PartlyFreed
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.model import LockEntry, LockMode, Reach, Resource
from commit_coord.protocol.migration import Phase, State
from commit_coord.redaction import without_passwords
from commit_coord.ui import freeing, moving, rendering, requests, tables
from commit_coord.ui.forms import FIELD, SHOWN, Proofs
from commit_coord.ui.looking import Look, Looks
from commit_coord.ui.now import SHORT, now
from commit_coord.ui.recent import Recent
from commit_coord.ui.rendering import ROOT, address
from commit_coord.ui.visiting import Changed, NotAllowed, NotFound, Shown, Visit, VisitedCatalog, Visitor

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 0.4
"""How often the locks are looked at for those who watch."""
_LONGEST_REASON = 500
NOTHING_SEEN = 0
_NO_LOOK = -1
"""The version of the locks while they can't be listed."""
_NOT_CONFIRMED = "Nothing was changed: type exactly what is asked for."
_CHANGED = "Nothing was changed: it is not as this page showed it any more. Look at it again, and confirm it again."


@dataclass(slots=True)
class _Served:
    """A catalog, and what the page keeps of it."""

    catalog: CoordinatedCatalog
    looks: Looks
    recent: Recent
    rendered: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    """The events of the latest look, by what is asked for and the rights; used by one thread."""
    fails: bool = False
    """Whether the locks could not be listed the last time."""


class Pages:
    """Answers visits. Thread safe.

    Args:
        catalogs: By their names; the page shows them in this order.
        secret: Protects the forms; the same in all processes of a server.
        may_change: Whether an administrator may free locks and move tables; else the page is read-only.
        serves_writers: Whether commits are carried out in this process, so that their waits are known.
    """

    def __init__(
        self,
        catalogs: Mapping[str, CoordinatedCatalog],
        secret: bytes,
        *,
        may_change: bool = True,
        serves_writers: bool = True,
    ) -> None:
        self._served = {name: _Served(catalog, Looks(catalog), Recent()) for name, catalog in catalogs.items()}
        self._proofs, self._may_change, self._serves_writers = Proofs(secret), may_change, serves_writers
        self._stopping = threading.Event()
        for served in self._served.values():
            served.catalog.events.subscribe(served.recent)

    def stop(self) -> None:
        """Begin nothing that takes long any more."""
        self._stopping.set()

    def answer(self, visit: Visit) -> Shown:
        """Return the answer to *visit*, also if it ends in an error. Blocks."""
        try:
            if visit.method not in ("GET", "HEAD", "POST"):
                return self._message(visit, HTTPStatus.METHOD_NOT_ALLOWED, "The page answers GET and POST.")
            return self._answered(visit)
        except (NotFound, NoSuchTableError, NoSuchNamespaceError) as error:
            return self._message(visit, HTTPStatus.NOT_FOUND, str(error))
        except NotAllowed as error:
            return self._message(visit, HTTPStatus.FORBIDDEN, str(error))
        except Changed as error:
            return self._message(visit, HTTPStatus.CONFLICT, str(error))
        except CommitCoordError as error:
            logger.warning("a page can't be shown: %s", error)
            return self._message(visit, HTTPStatus.SERVICE_UNAVAILABLE, without_passwords(str(error)))
        except Exception:
            logger.exception("a page ended in an unexpected error")
            message = "Something unexpected happened; the server's log says more."
            return self._message(visit, HTTPStatus.INTERNAL_SERVER_ERROR, message)

    def login(self, following: str, *, is_wrong: bool = False, is_possible: bool = True) -> Shown:
        """Return the page that asks who the visitor is.

        Args:
            following: The address that the visitor asked for.
            is_wrong: Whether a token was given that is not accepted.
            is_possible: Whether a token can be given at all: else a certificate or a proxy says who asks.
        """
        values = {"following": following, "is_wrong": is_wrong, "is_possible": is_possible}
        return rendering.html("login.html", HTTPStatus.UNAUTHORIZED, **self._frame(None, None), **values)

    def refusal(self, status: HTTPStatus, message: str) -> Shown:
        """Return a page for a visit that was refused before it began."""
        return rendering.html(
            "message.html", status, **self._frame(None, None), heading=status.phrase, message=without_passwords(message)
        )

    def has_proof(self, visit: Visit) -> bool:
        """Return whether *visit* sends a form of this server."""
        try:
            self._proofs.check(visit.visitor, visit.form)
        except NotAllowed:
            return False
        return True

    def may_change(self, visit: Visit) -> bool:
        """Return whether *visit* sends a form of this server with which its visitor may change something.

        A form that frees locks names only their request. So it may be refused once their resources are known.
        """
        if visit.method != "POST" or len(visit.path) != 2 or not (self.has(visit) and self.has_proof(visit)):
            return False
        place, _ = self._place(visit)
        match visit.path[1]:
            case "free":
                return self._may_change and visit.visitor.frees(place.catalog.name)
            case "reap":
                return place.administers()
            case "table":
                with suppress(NotFound):
                    return place.administers(Resource.table(_table_name(visit.query)))
        return False

    def look(self, catalog: str) -> Look | str:
        """Return the locks now, or why they can't be listed; for all who watch the catalog. Blocks."""
        served = self._served[catalog]
        try:
            look = served.looks.latest(WATCH_EVERY_S / 2)
            served.fails = False
            return look
        except Exception as error:  # whatever it is, the next look may succeed
            if not served.fails:
                logger.warning("the locks of %s can't be listed", catalog, exc_info=True)
            served.fails = True
            return without_passwords(str(error)) if isinstance(error, CommitCoordError) else ""

    def events(self, visit: Visit, look: Look | str) -> bytes:
        """Return the events for a browser that has not seen *look*; those who see the same share one text."""
        if isinstance(look, str):
            return rendering.event("summary", rendering.text("_summary.html", now=None, problem=look))
        place, served = self._place(visit)
        databases = {entry.resource.path[0] for entry in look.entries} | {lease.db_name for lease in look.leases}
        rights = [(one, place.reads(Resource((one,))), place.administers(Resource((one,)))) for one in databases]
        key = look.version, visit.query.get("find"), visit.query.get("page"), frozenset(rights)
        if (events := served.rendered.get(key)) is None:
            values = self._now_values(visit, place, look)
            events = rendering.event("now", rendering.text("_now.html", **values))
            events += rendering.event("summary", rendering.text("_summary.html", **values))
            for old in [one for one in served.rendered if one[0] != look.version]:
                del served.rendered[old]
            served.rendered[key] = events
        return events

    def has(self, visit: Visit) -> bool:
        """Return whether the visitor sees the catalog that the path names."""
        return visit.path[0] in self._served and visit.visitor.sees(visit.path[0])

    def _answered(self, visit: Visit) -> Shown:
        match visit.path:
            case ("assets", name):
                return rendering.asset(name)
            case () | ("",):
                return self._catalogs(visit)
            case (catalog,):
                return rendering.redirect(address(catalog, ""))
            case (_, page) if page in _PAGES:
                place, served = self._place(visit)
                return _PAGES[page](self, visit, place, served)
        raise NotFound("There is no such page.")

    def _place(self, visit: Visit) -> tuple[VisitedCatalog, _Served]:
        if not self.has(visit):
            raise NotFound("There is no such catalog.")
        served = self._served[visit.path[0]]
        return VisitedCatalog(served.catalog, visit.visitor, self._may_change), served

    # Pages.

    def _catalogs(self, visit: Visit) -> Shown:
        names = [name for name in self._served if visit.visitor.sees(name)]
        if len(names) == 1:
            return rendering.redirect(address(names[0], ""))
        return rendering.html("catalogs.html", **self._frame(None, visit.visitor), names=names)

    def _now(self, visit: Visit, place: VisitedCatalog, served: _Served) -> Shown:
        values = self._now_values(visit, place, served.looks.latest(WATCH_EVERY_S / 2))
        return rendering.html("now.html", **self._frame(place, visit.visitor, "now"), **values)

    def _now_values(self, visit: Visit, place: VisitedCatalog, look: Look) -> dict[str, Any]:
        readable = _memoized(lambda resource: place.reads(Resource(resource.path[:1])))
        wanted = visit.query.get("find", "")
        shown = now(
            [entry for entry in look.entries if readable(entry.resource)],
            at_ms=look.at_ms,
            cause_of_death=look.cause_of_death,
            wanted=wanted,
            page=_number(visit.query.get("page")),
        )
        may_free = _memoized(lambda resource: place.administers(Resource(resource.path[:1])))
        leases = [lease for lease in look.leases if readable(Resource((lease.db_name,)))]
        shared = {"now": shown, "leases": leases, "wanted": wanted, "may_free": may_free}
        return {**shared, "place": place, "problem": ""}

    def _tables(self, visit: Visit, place: VisitedCatalog, served: _Served) -> Shown:
        wanted = visit.query.get("find", "")
        listing = tables.listing(
            place.catalog, wanted, lambda namespace: visit.visitor.reads(place.catalog.name, namespace)
        )
        frame = self._frame(place, visit.visitor, "tables")
        return rendering.html("tables.html", **frame, listing=listing, wanted=wanted)

    def _table(self, visit: Visit, place: VisitedCatalog, served: _Served) -> Shown:
        name = _table_name(visit.query)
        _require_readable(place, name)
        if visit.method == "POST":
            return self._moved(visit, place, served, name)
        return self._table_page(visit, place, served, name)

    def _table_page(
        self,
        visit: Visit,
        place: VisitedCatalog,
        served: _Served,
        name: Identifier,
        *,
        message: str = "",
        status: int = 200,
    ) -> Shown:
        table = place.catalog.load_table(name)
        resource = place.catalog.spelled(Resource.table(name))
        look = served.looks.latest(1.0)
        phase = moving.phase_of(place, table)
        try:
            files: tables.Files | None = tables.files(table)
        except (OSError, ValueError):
            logger.warning("the files of %s can't be counted", ".".join(name), exc_info=True)
            files = None
        return rendering.html(
            "table.html",
            status,
            **self._frame(place, visit.visitor, "tables"),
            name=name,
            table=table,
            locks=[entry for entry in look.entries if _concerns(entry, resource)],
            cause_of_death=look.cause_of_death,
            commits=tables.commits(table),
            files=files,
            waits=served.recent.waits(name, place.reads_tables),
            serves_writers=self._serves_writers,
            phase=phase,
            shown=phase and _shown(phase[0]),
            may_move=place.administers(resource),
            message=message,
        )

    def _moved(self, visit: Visit, place: VisitedCatalog, served: _Served, name: Identifier) -> Shown:
        self._proofs.check(visit.visitor, visit.form)
        if not place.administers(Resource.table(name)):
            raise NotAllowed("Only an administrator may move a table.")
        phase = moving.phase_of(place, place.catalog.load_table(name))
        target = visit.form.get("target", "")
        if phase is None or target not in {step.target for step in phase[1]}:
            raise NotFound("The table can't go to this phase from where it is.")
        if (asked := _asked(visit, name[-1], _shown(phase[0]))) is not None:
            return self._table_page(visit, place, served, name, status=asked[0], message=asked[1])
        stopping = self._stopping.is_set
        moved = moving.move(place, name, phase[0], Phase(target), _reason(visit), is_stopping=stopping)
        message = f"{moved.outcome}: {moved.after or '?'}" + (f". {moved.reason}" if moved.reason else "")
        try:
            return self._table_page(visit, place, served, name, message=message)
        except Exception:  # an error page would look as if the move had failed
            logger.warning("the table can't be shown after its move", exc_info=True)
            return self._message(visit, HTTPStatus.OK, f"{message}. The table can't be shown now.")

    def _request(self, visit: Visit, place: VisitedCatalog, served: _Served) -> Shown:
        text, table = visit.query.get("id", "").strip(), visit.query.get("table", "").strip()
        name = _identifier(*table.split(".")) if table else None
        found = candidates = problem = None
        look = served.looks.latest(1.0)
        if text and len(text) < SHORT:
            problem = f"A request id has at least its first {SHORT} letters here."
        elif text:
            if name is not None:
                _require_readable(place, name)
                place.catalog.metadata_location(name)
            became = requests.fate(place, served.recent, look, text, name)
            found, candidates = (None, became) if isinstance(became, requests.Candidates) else (became, None)
        frame = self._frame(place, visit.visitor, "request")
        chosen = request_uuid(text) if is_beginning(text) else None
        frame |= {"text": text, "table": table, "fate": found, "candidates": candidates, "problem": problem}
        frame |= {"chosen": chosen}
        return rendering.html("request.html", **frame, cause_of_death=look.cause_of_death)

    def _free(self, visit: Visit, place: VisitedCatalog, served: _Served) -> Shown:
        request_id = (visit.form if visit.method == "POST" else visit.query).get("request", "")
        if visit.method == "POST":
            self._proofs.check(visit.visitor, visit.form)
        look = served.looks.latest()
        locks = freeing.request_locks(place, look, request_id)
        word, shown = freeing.confirmation_of(request_id), freeing.digest(locks)
        frame = self._frame(place, visit.visitor, "now") | {"cause_of_death": look.cause_of_death}
        if (asked := _asked(visit, word, shown)) is None:
            return self._freed(place, lambda: freeing.free(place, locks, _reason(visit)), frame)
        values = {"locks": locks, "word": word, "shown": shown, "message": asked[1], "request_id": request_id}
        return rendering.html("free.html", asked[0], **frame, **values, is_conditional=_is_conditional(place))

    def _reap(self, visit: Visit, place: VisitedCatalog, served: _Served) -> Shown:
        if visit.method == "POST":
            self._proofs.check(visit.visitor, visit.form)
        look = served.looks.latest()
        locks, guards = freeing.dead_locks(place, look), freeing.left_guards(place, look)
        word, shown = freeing.REAP_WORD, freeing.digest([*locks, *guards])
        frame = self._frame(place, visit.visitor, "now") | {"cause_of_death": look.cause_of_death}
        if (asked := _asked(visit, word, shown)) is None:
            return self._freed(place, lambda: freeing.reap(place, _reason(visit)), frame)
        values = {"locks": locks, "guards": guards, "word": word, "shown": shown, "message": asked[1]}
        return rendering.html("reap.html", asked[0], **frame, **values)

    # What pages share.

    @staticmethod
    def _freed(place: VisitedCatalog, release: Callable[[], Sequence[LockEntry]], frame: dict[str, Any]) -> Shown:
        values: dict[str, Any] = {"has_file": bool(place.catalog.settings.commit_coord_audit_log)}
        try:
            return rendering.html("freed.html", **frame, **values, freed=release(), maybe_freed=(), problem="")
        except PartlyFreed as error:
            logger.warning("not everything was freed: %s", error)
            values |= {"freed": error.freed, "maybe_freed": error.maybe_freed, "problem": without_passwords(str(error))}
            return rendering.html("freed.html", HTTPStatus.SERVICE_UNAVAILABLE, **frame, **values)

    def _message(self, visit: Visit, status: HTTPStatus, message: str) -> Shown:
        place = self._place(visit)[0] if visit.path and self.has(visit) else None
        frame = self._frame(place, visit.visitor)
        return rendering.html("message.html", status, **frame, heading=status.phrase, message=message)

    def _frame(self, place: VisitedCatalog | None, visitor: Visitor | None, current: str = "") -> dict[str, Any]:
        """Return what every page needs."""
        return {
            "catalog": place.catalog.name if place else "",
            "lock_manager": place.catalog.settings.lock_impl if place else "",
            "sees_only_itself": place is not None and place.catalog.locks.guarantees.reach == Reach.PROCESS,
            "may_change": self._may_change,
            "may_reap": place is not None and place.administers(),
            "current": current,
            "visitor": visitor,
            "proof": self._proofs.of(visitor) if visitor else "",
            "proof_field": FIELD,
            "shown_field": SHOWN,
            "root": ROOT,
        }


_Page = Callable[[Pages, Visit, VisitedCatalog, _Served], Shown]
_PAGES: dict[str, _Page] = {
    "": Pages._now,
    "tables": Pages._tables,
    "table": Pages._table,
    "request": Pages._request,
    "free": Pages._free,
    "reap": Pages._reap,
}


def version_of(look: Look | str) -> int:
    """Return what a browser has seen once it has got the events of *look*."""
    return _NO_LOOK if isinstance(look, str) else look.version


def _require_readable(place: VisitedCatalog, table: Identifier) -> None:
    if not place.reads(place.catalog.spelled(Resource.table(table))):
        raise NotFound(f"There is no table {'.'.join(table)}.")


def _concerns(entry: LockEntry, table: Resource) -> bool:
    """Return whether a lock is on a part of *table*, or on all of its database."""
    path = entry.resource.path
    return path[:2] == table.path or (path == table.path[:1] and entry.mode is LockMode.EXCLUSIVE)


def _is_conditional(place: VisitedCatalog) -> bool:
    """Return whether it is certain that a commit without its latch overwrites no other."""
    try:
        return place.catalog.swaps_are_conditional()
    except CommitCoordError:
        return False


def _asked(visit: Visit, word: str, shown: str) -> tuple[int, str] | None:
    """Return status and message of a page that asks for a confirmation; None once *shown* is confirmed."""
    if visit.method != "POST":
        return HTTPStatus.OK, ""
    if visit.form.get("confirm", "").strip() != word:
        return HTTPStatus.BAD_REQUEST, _NOT_CONFIRMED
    return None if visit.form.get(SHOWN) == shown else (HTTPStatus.CONFLICT, _CHANGED)


def _shown(state: State) -> str:
    """Return what a form contains of the phase that its page shows."""
    return f"{state.phase} {state.epoch}"


def _table_name(query: Mapping[str, str]) -> Identifier:
    return _identifier(*query.get("namespace", "").split("."), query.get("name", ""))


def _identifier(*levels: str) -> Identifier:
    try:
        Resource(levels)
    except ValueError as error:
        raise NotFound("This is not the name of a table.") from error
    if len(levels) < 2:
        raise NotFound("A table is named NAMESPACE.TABLE.")
    return levels


def _reason(visit: Visit) -> str:
    return " ".join(visit.form.get("why", "").split())[:_LONGEST_REASON]


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else 1


def _memoized(ask: Callable[[Resource], bool]) -> Callable[[Resource], bool]:
    """Return *ask*, which is asked once for each database."""
    known: dict[str, bool] = {}

    def asked(resource: Resource) -> bool:
        database = resource.path[0]
        if database not in known:
            known[database] = ask(resource)
        return known[database]

    return asked
