"""Finds the handler of a request. A path is split first, and then the names in it are decoded.

A name may contain ``/``, which is ``%2F`` in the raw path, and the levels of a namespace are separated by ``%1F``.
Therefore routes match the raw path: in a decoded path, such a name would become two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from urllib.parse import unquote_plus

from pyiceberg.typedef import Identifier

from commit_coord.rest.needs import Needs
from commit_coord.rest.wire import Request

H = TypeVar("H", bound=Callable[..., object])

PREFIX = "/v1/{prefix}"
"""The first part of the routes of one warehouse."""


@dataclass(frozen=True, slots=True)
class Route(Generic[H]):
    """One row of the table of routes.

    Args:
        method: In upper case.
        path: As in the specification: ``{name}`` is a part that contains a name.
        handler: Answers the request.
        needs: The right that the client must have.
        changes: Returns the tables, views or namespaces that the request changes; a namespace is one name, joined with
            dots. None: it changes nothing.
        commits: Whether the request is a commit to tables. If the head has moved, its client may come back.
    """

    method: str
    path: str
    handler: H
    needs: Needs
    changes: Callable[[Request], Sequence[Identifier]] | None = None
    commits: bool = False

    @property
    def endpoint(self) -> str:
        """The route as ``GET /v1/config`` advertises it."""
        return f"{self.method} {self.path}"

    @property
    def without_prefix(self) -> Route[H]:
        """The same route under a path that names no warehouse. Some clients leave the prefix out, or have none."""
        return replace(self, path=self.path.replace(PREFIX, "/v1"))


class NoRoute(LookupError):
    """Nothing is served under this path."""


class MethodNotAllowed(LookupError):
    """The path is served, but not with this method.

    Args:
        allowed: The methods with which it is served.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = sorted(allowed)
        super().__init__(f"allowed are: {', '.join(self.allowed)}")


class Router(Generic[H]):
    """Finds the route of a request.

    Args:
        routes: All routes. If several match, the one with fewer names in its path is chosen.
    """

    def __init__(self, routes: Iterable[Route[H]]) -> None:
        self._by_length: dict[int, list[tuple[list[str], Route[H]]]] = {}
        for route in routes:
            parts = route.path.split("/")
            self._by_length.setdefault(len(parts), []).append((parts, route))
        for found in self._by_length.values():
            found.sort(key=lambda entry: sum(_is_name(part) for part in entry[0]))

    def find(self, method: str, raw_path: str) -> tuple[Route[H], Mapping[str, str]]:
        """Return the route of *method* and *raw_path*, and the names in the path, decoded.

        Raises:
            MethodNotAllowed: The path is served with other methods only.
            NoRoute: Nothing is served under this path.
        """
        given = raw_path.split("/")
        routes = self._by_length.get(len(given), ())
        for parts, route in routes:
            if route.method == method and _matches(parts, given):
                return route, _names(parts, given)
        if allowed := [route.method for parts, route in routes if _matches(parts, given)]:
            raise MethodNotAllowed(allowed)
        raise NoRoute(f"nothing is served under {raw_path}")


def _is_name(part: str) -> bool:
    return part.startswith("{")


def _matches(parts: list[str], given: list[str]) -> bool:
    return all(text if _is_name(part) else part == text for part, text in zip(parts, given, strict=True))


def _names(parts: list[str], given: list[str]) -> dict[str, str]:
    # Java encodes a path like a form: a blank becomes a plus.
    return {part[1:-1]: unquote_plus(text) for part, text in zip(parts, given, strict=True) if _is_name(part)}
