"""Where a catalog's configuration comes from: arguments, environment and file, with aliases resolved."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config

from commit_coord.config.aliases import UNSUPPORTED
from commit_coord.config.properties import PROPERTIES
from commit_coord.config.settings import OPTION_PREFIXES, Configuration, Settings, check, follow, is_in_memory
from commit_coord.config.values import LockImpl, Origin
from commit_coord.errors import ConfigError

COORDINATED_URI_PREFIX = "coord+"
"""In front of a catalog's URI it makes plain PyIceberg refuse the catalog instead of opening it uncoordinated."""

_BY_KEY = {prop.key: prop for prop in PROPERTIES}
_BY_ALIAS = {alias: (prop, convert) for prop in PROPERTIES for alias, convert in prop.aliases.items()}
_OURS = re.compile(
    r"(lock|operation|commit-coord|hive\.locks?|hive\.support\.concurrency|hive\.zookeeper|iceberg\.hive\.lock|"
    r"iceberg\.catalog\.hive\.lock|commit|lease)([-._]|$)"
)
"""Keys that can only be meant for us: an unknown one among them is a mistake."""


def configure(name: str, arguments: Mapping[str, Any]) -> Configuration:
    """Return the configuration of catalog *name*: arguments before environment before ``.pyiceberg.yaml``.

    PyIceberg hands a catalog class the arguments alone; what the file and the environment say would be ignored.

    Raises:
        ConfigError: A key is unknown, a value is malformed, or two settings contradict each other.
    """
    given, origins = _merged(name, arguments)
    uri = given.get("uri")
    if not uri:
        raise ConfigError(
            "a catalog needs a uri",
            catalog=name,
            key="uri",
            accepted="coord+sqlite:///…, coord+postgresql://… or coord+thrift://…",
        )
    uri = uri.removeprefix(COORDINATED_URI_PREFIX)
    texts = _texts(given, origins)
    if not texts.get("lock-impl"):
        texts["lock-impl"] = _default_lock_impl(uri)
    texts.setdefault("lock.uri", uri)
    settings = _settings(texts, origins)
    check(settings, uri)
    _refuse_options_of_others(settings.lock_impl, texts)
    others = {
        k: v
        for k, v in given.items()
        if k not in _BY_KEY and k not in _BY_ALIAS and k not in ("py-catalog-impl", "type")
    }
    return Configuration(name=name, settings=settings, properties={**others, "uri": uri}, origins=origins, given=given)


def given_properties(name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return what is set for catalog *name* by arguments, environment and file together."""
    return _merged(name, arguments)[0]


def default_catalog_name() -> str:
    """Return ``default-catalog`` of the configuration, else ``default``."""
    with _readable():
        return Config().get_default_catalog_name()


def known_catalogs() -> list[str]:
    """Return the names that PyIceberg's configuration has, from files and the environment."""
    with _readable():
        found = Config().config.get("catalog")
    return sorted(found) if isinstance(found, dict) else []


@contextmanager
def _readable() -> Iterator[None]:
    """Say in a sentence why PyIceberg's configuration can't be read."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - those of PyIceberg's YAML parser have no other base
        cause, mark = getattr(error, "problem", None) or error, getattr(error, "problem_mark", None)
        if isinstance(error, AttributeError):  # PyIceberg asks for the items of a text
            cause = "it is a text without keys"
        line = mark.line + 1 if mark is not None else None
        raise ConfigError(
            "PyIceberg's configuration can't be read",
            file=".pyiceberg.yaml",
            line=line,
            cause=cause,
            accepted="block-style YAML: 'catalog:', below it the catalogs, below each its properties",
        ) from None


def _default_lock_impl(uri: str) -> LockImpl:
    if is_in_memory(uri):
        return LockImpl.MEMORY
    return LockImpl.HMS if uri.startswith("thrift:") else LockImpl.LEASE


def _merged(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Origin]]:
    merged: dict[str, str] = {}
    origins: dict[str, Origin] = {}
    with _readable():
        files, environment = Config._from_configuration_files() or {}, Config._from_environment_variables({})
    for origin, source in (
        (Origin.FILE, _catalog(name, files)),
        (Origin.ENVIRONMENT, _catalog(name, environment)),
        (Origin.ARGUMENT, arguments),
    ):
        for key, value in source.items():
            if value is not None:
                merged[key], origins[key] = str(value), origin
    return merged, origins


def _catalog(name: str, config: RecursiveDict) -> Mapping[str, Any]:
    catalogs = config.get("catalog", {})
    found = catalogs.get(name.lower(), {}) if isinstance(catalogs, dict) else {}
    return found if isinstance(found, dict) else {}


def _texts(given: Mapping[str, str], origins: dict[str, Origin]) -> dict[str, str]:
    """Return key → text of our properties, aliases resolved."""
    texts: dict[str, str] = {}
    sources: dict[str, str] = {}
    for key, value in given.items():
        if key in _BY_KEY:
            prop, text = _BY_KEY[key], value
        elif key in _BY_ALIAS:
            prop, convert = _BY_ALIAS[key]
            try:
                text = convert(value)
            except (ValueError, OverflowError) as error:
                raise ConfigError("invalid value of a setting", key=key, value=value, accepted=str(error)) from error
            if not text:
                if given.get("lock-impl") == LockImpl.NONE:
                    raise ConfigError(
                        "two settings contradict each other",
                        key=key,
                        value=value,
                        other="lock-impl",
                        other_value="none",
                    )
                continue
        elif key in UNSUPPORTED:
            raise ConfigError("unsupported setting of Hive", key=key, accepted=UNSUPPORTED[key])
        elif _OURS.match(key):
            close = difflib.get_close_matches(key, [*_BY_KEY, *_BY_ALIAS], n=1)
            raise ConfigError(
                "unknown setting", key=key, nearest=close[0] if close else None, accepted=", ".join(_BY_KEY)
            )
        else:
            continue
        if texts.get(prop.key, text) != text:
            raise ConfigError(
                "two settings contradict each other",
                key=key,
                value=value,
                other=sources[prop.key],
                other_value=texts[prop.key],
            )
        texts[prop.key], sources[prop.key] = text, key
        origins[prop.key] = origins[key]
    return texts


def _settings(texts: Mapping[str, str], origins: dict[str, Origin]) -> Settings:
    values: dict[str, Any] = {}
    for prop in PROPERTIES:
        text = texts.get(prop.key, prop.default)
        origins.setdefault(prop.key, Origin.DEFAULT)
        try:
            values[prop.attribute] = prop.parse(cast(str, text))
        except ValueError as error:
            raise ConfigError("invalid value of a setting", key=prop.key, value=text, accepted=prop.type) from error
        except OverflowError as error:
            accepted = f"{prop.type}, {error}"
            raise ConfigError("invalid value of a setting", key=prop.key, value=text, accepted=accepted) from error
    return Settings(**follow(values, texts.keys()))


def _refuse_options_of_others(lock_impl: str, texts: Mapping[str, str]) -> None:
    """Refuse settings that only another lock manager takes."""
    for manager, prefix in OPTION_PREFIXES.items():
        misplaced = [key for key in texts if key.startswith(prefix.replace("_", "."))]
        if misplaced and prefix != OPTION_PREFIXES.get(lock_impl):
            raise ConfigError(
                "two settings contradict each other",
                key=misplaced[0],
                value=texts[misplaced[0]],
                other="lock-impl",
                other_value=lock_impl,
                accepted=f"lock-impl={manager}",
            )
