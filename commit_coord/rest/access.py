"""What a client may do, and where. Pure.

A grant is for a catalog, or for a namespace and all below it. The one with the longest prefix decides, also where it
allows less than a shorter one; where none fits, nothing is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

Place = tuple[str, ...]
"""A catalog's name, and the levels of a namespace; the catalog alone is all of it."""


class Access(IntEnum):
    """What a grant allows. Each one includes those before it."""

    NONE = 0
    SEE = 1
    """Know that it is there: where something at or below the place may be read. Needed by lists, never granted."""
    READ = 2
    WRITE = 3
    ADMINISTER = 4

    def __str__(self) -> str:
        """Return how the configuration writes it."""
        return self.name.lower()


class NotAuthenticated(Exception):
    """Who sent the request is not known. Nothing was done.

    Args:
        reason: Why, in words that a header may hold.
        given: Whether the request said who sent it, and it was not believed.
    """

    def __init__(self, reason: str, *, given: bool) -> None:
        self.given = given
        super().__init__(reason)


class KeysWanted(Exception):
    """Who sent the request is known when the keys of its issuer have been fetched, which blocks."""


class IssuerUnavailable(Exception):
    """The keys of the issuer were never fetched, so no token of it can be believed or refused. Nothing was done."""


class Forbidden(Exception):
    """Who sent the request may not do what it asks for. Nothing was done."""


class Grants:
    """All grants of one client.

    Args:
        grants: Place → what is allowed there, and below it where no longer place says something else.
    """

    __slots__ = ("_grants",)

    def __init__(self, grants: Mapping[Place, Access]) -> None:
        self._grants = dict(grants)

    @classmethod
    def union(cls, several: Iterable[Grants]) -> Grants:
        """Return what a client has that is in several groups: at one place the widest."""
        made: dict[Place, Access] = {}
        for one in several:
            for place, access in one._grants.items():
                made[place] = max(access, made.get(place, Access.NONE))
        return cls(made)

    def allow(self, place: Place, needed: Access) -> bool:
        """Return whether *needed* is allowed at *place*."""
        if needed is Access.SEE:
            below = (access for granted, access in self._grants.items() if granted[: len(place)] == place)
            return self._at(place) >= Access.READ or any(access >= Access.READ for access in below)
        return self._at(place) >= needed

    def _at(self, place: Place) -> Access:
        for length in range(len(place), -1, -1):
            if (found := self._grants.get(place[:length])) is not None:
                return found
        return Access.NONE


EVERYTHING = Grants({(): Access.ADMINISTER})
"""What everybody has on a server without authentication."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    Args:
        name: Of a client in the file of clients, or what a trusted issuer calls it; "" for anybody.
        grants: What it may do.
    """

    name: str
    grants: Grants


ANYBODY = Caller("", EVERYTHING)
