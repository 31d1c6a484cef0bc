"""What a property is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One property.

    Args:
        key: Its name.
        type: What a value must be, in words for the reader of an error message.
        default: As text; None where it depends on other settings.
        description: What it does, one or two sentences.
        parse: Makes the value of its text; raises ValueError.
        aliases: Its names in Hive and Iceberg, each with the function that turns a text of theirs into one of ours.
    """

    key: str
    type: str
    default: str | None
    description: str
    parse: Callable[[str], Any]
    aliases: Mapping[str, Callable[[str], str]]

    @property
    def attribute(self) -> str:
        """Its name in :class:`~commit_coord.config.settings.Settings`."""
        return self.key.replace(".", "_").replace("-", "_")


def row(
    key: str,
    type_: str,
    default: str | None,
    description: str,
    parse: Callable[[str], Any] = str,
    aliases: Mapping[str, Callable[[str], str]] | None = None,
) -> Property:
    """Return a property, written as a row of the table."""
    return Property(
        key=key, type=type_, default=default, description=description, parse=parse, aliases=dict(aliases or {})
    )
