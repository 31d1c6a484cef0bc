"""Access rights: what a client may do, and where. Pure.

A grant covers a catalog, or a namespace and everything below it. If several grants cover a place, the one with the
longest prefix decides, even if it allows less than a shorter one. Where no grant covers a place, nothing is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import IntEnum

GrantPath = tuple[str, ...]
"""A catalog's name and the levels of a namespace. The name alone means the whole catalog."""


class Access(IntEnum):
    """What a grant allows. Each value includes the values before it."""

    NONE = 0
    SEE = 1
    """Know that the place exists: allowed if the client may read the place, or something below it.

    Lists need it. The configuration cannot grant it.
    """
    READ = 2
    WRITE = 3
    ADMINISTER = 4

    def __str__(self) -> str:
        """Return the word for it in the configuration."""
        return self.name.lower()


class NotAuthenticated(Exception):
    """The sender of the request is not known. Nothing was done.

    Args:
        reason: Why; the text fits into a header.
        given: True if the request contains a proof that is not accepted, False if it contains none.
    """

    def __init__(self, reason: str, *, given: bool) -> None:
        self.given = given
        super().__init__(reason)


class KeysWanted(Exception):
    """The sender can be identified only after the keys of the issuer have been fetched.

    Args:
        fetch: The fetch that runs.
    """

    def __init__(self, fetch: Future[None]) -> None:
        self.fetch = fetch
        super().__init__()


class IssuerUnavailable(Exception):
    """The keys of the issuer could not be fetched so far, so its tokens cannot be checked. Nothing was done."""


class Forbidden(Exception):
    """The sender of the request is not allowed to do this. Nothing was done."""


class Grants:
    """All grants of one client.

    Args:
        grants: For each place, what is allowed there and below, unless a longer place has a grant of its own.
    """

    __slots__ = ("_grants",)

    def __init__(self, grants: Mapping[GrantPath, Access]) -> None:
        self._grants = dict(grants)

    @classmethod
    def union(cls, several: Iterable[Grants]) -> Grants:
        """Return the grants of a client that belongs to several groups: for each place the widest one."""
        made: dict[GrantPath, Access] = {}
        for one in several:
            for place, access in one._grants.items():
                made[place] = max(access, made.get(place, Access.NONE))
        return cls(made)

    def allow(self, place: GrantPath, needed: Access) -> bool:
        """Return whether *needed* is allowed at *place*."""
        return self.allow_somewhere(place, Access.READ) if needed is Access.SEE else self._at(place) >= needed

    def allow_somewhere(self, place: GrantPath, needed: Access) -> bool:
        """Return whether *needed* is allowed at *place* or somewhere below it."""
        return self._at(place) >= needed or any(access >= needed for access in self._below(place))

    def allow_everywhere(self, place: GrantPath, needed: Access) -> bool:
        """Return whether *needed* is allowed at *place* and everywhere below it."""
        return self._at(place) >= needed and all(access >= needed for access in self._below(place))

    def _below(self, place: GrantPath) -> Iterator[Access]:
        return (access for granted, access in self._grants.items() if granted[: len(place)] == place)

    def _at(self, place: GrantPath) -> Access:
        for length in range(len(place), -1, -1):
            if (found := self._grants.get(place[:length])) is not None:
                return found
        return Access.NONE


EVERYTHING = Grants({(): Access.ADMINISTER})
"""The grants of every client of a server without authentication."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Args:
        name: The name in the file of clients, or the one that a trusted issuer uses; "" on a server without
            authentication.
        grants: What the sender may do.
    """

    name: str
    grants: Grants


ANYBODY = Caller("", EVERYTHING)
