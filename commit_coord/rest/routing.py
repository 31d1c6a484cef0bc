"""Which handler answers a request. Names in a path are decoded only when its parts are known.

A name may hold ``/``, which is ``%2F`` in a raw path, and the levels of a namespace are separated by ``%1F``. So
routes match the raw path; servers that match a decoded one take such a name for two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import unquote_plus

from commit_coord.rest.needs import Needs

H = TypeVar("H", bound=Callable[..., object])

PREFIX = "/v1/{prefix}"
"""What routes of one warehouse begin with."""


@dataclass(frozen=True, slots=True)
class Route(Generic[H]):
    """One row of the table of routes.

    Args:
        method: In upper case.
        path: As the specification writes it, with ``{name}`` for a part that is a name.
        handler: What answers.
        needs: What a client must be allowed.
        queues: Whether it waits for the table that it names.
    """

    method: str
    path: str
    handler: H
    needs: Needs
    queues: bool = False

    @property
    def endpoint(self) -> str:
        """How ``GET /v1/config`` advertises it."""
        return f"{self.method} {self.path}"


class NoRoute(LookupError):
    """Nothing is served under this path."""


class MethodNotAllowed(LookupError):
    """Something is served under this path, but not by this method.

    Args:
        allowed: The methods that are.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = sorted(allowed)
        super().__init__(f"allowed are: {', '.join(self.allowed)}")


class Router(Generic[H]):
    """Finds the route of a request.

    Args:
        routes: All of them. A part that is fixed goes before a name in the same place.
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
            MethodNotAllowed: Only other methods are served under this path.
            NoRoute: Nothing is.
        """
        given = raw_path.split("/")
        allowed = []
        for parts, route in self._by_length.get(len(given), ()):
            names = _matched(parts, given)
            if names is None:
                continue
            if route.method == method:
                return route, names
            allowed.append(route.method)
        if allowed:
            raise MethodNotAllowed(allowed)
        raise NoRoute(f"nothing is served under {raw_path}")


def _is_name(part: str) -> bool:
    return part.startswith("{")


def _matched(parts: list[str], given: list[str]) -> dict[str, str] | None:
    names = {}
    for part, text in zip(parts, given, strict=True):
        if not _is_name(part):
            if part != text:
                return None
        elif not text:
            return None
        else:
            names[part[1:-1]] = unquote_plus(text)  # Java encodes a path as a form: a blank is a plus
    return names
