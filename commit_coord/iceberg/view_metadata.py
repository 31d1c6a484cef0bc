"""The metadata of views: JSON objects, changed as Java changes them. Pure.

Views are Java's: PyIceberg reads their metadata and changes none. So what is here keeps to objects as they stand in the
file, and loses no field.

Source: Iceberg specification, "View Spec"; Iceberg Java ``ViewMetadata.Builder``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.exceptions import CommitFailedException, ValidationException

Object = Mapping[str, Any]

_LAST = -1
"""The id of a schema or version that stands for the one that was added last."""

_VERSIONS_KEPT = "version.history.num-entries"
_VERSIONS_KEPT_DEFAULT = 10
_MAY_DROP_DIALECTS = "replace.drop-dialect.allowed"


def created(uuid: str, location: str, schema: Object, version: Object, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of a new view.

    Raises:
        ValueError: The version has two queries for one dialect.
    """
    empty: dict[str, Any] = {
        "view-uuid": uuid,
        "format-version": 1,
        "location": location,
        "schemas": [],
        "current-version-id": _LAST,
        "versions": [],
        "version-log": [],
        "properties": dict(properties),
    }
    updates: list[Object] = [
        {"action": "add-schema", "schema": schema},
        {"action": "add-view-version", "view-version": {**version, "schema-id": _LAST}},
        {"action": "set-current-view-version", "view-version-id": _LAST},
    ]
    return changed(empty, updates, now_ms=int(version.get("timestamp-ms", 0)))


def check_uuid(metadata: Object, requirements: Sequence[Object]) -> None:
    """Return if *metadata* meets *requirements*.

    Raises:
        CommitFailedException: The view was made anew since it was read.
        ValueError: A requirement is not one of views.
    """
    for requirement in requirements:
        if requirement.get("type") != "assert-view-uuid":
            raise ValueError(f"Cannot parse view requirement: {requirement.get('type')}")
        if requirement.get("uuid") != metadata["view-uuid"]:
            raise CommitFailedException(
                "Requirement failed: view UUID does not match: "
                f"expected {metadata['view-uuid']} != {requirement.get('uuid')}"
            )


def changed(metadata: Object, updates: Sequence[Object], *, now_ms: int) -> dict[str, Any]:
    """Return *metadata* with *updates* applied in order.

    Args:
        metadata: Not changed.
        updates: Of the REST protocol.
        now_ms: When an older version becomes the current one.

    Raises:
        ValidationException: An update does not fit.
        ValueError: An update is not one of views, or a version has two queries for one dialect.
    """
    return _Builder(metadata, now_ms).build(updates)


class _Builder:
    def __init__(self, base: Object, now_ms: int) -> None:
        self._base, self._now_ms = base, now_ms
        self._made: dict[str, Any] = {
            **base,
            "schemas": list(base["schemas"]),
            "versions": list(base["versions"]),
            "version-log": list(base["version-log"]),
            "properties": dict(base.get("properties") or {}),
        }
        self._last_schema = self._last_version = _LAST
        self._added: set[int] = set()

    def build(self, updates: Sequence[Object]) -> dict[str, Any]:
        for update in updates:
            self._apply(update)
        self._check_dialects()
        self._expire()
        return self._made

    def _apply(self, update: Object) -> None:
        match update.get("action"):
            case "assign-uuid":
                if update["uuid"] != self._made["view-uuid"]:
                    raise ValidationException("Cannot reassign uuid")
            case "upgrade-format-version":
                if update["format-version"] != 1:
                    raise ValidationException(f"Unsupported format version: {update['format-version']}")
            case "set-location":
                self._made["location"] = update["location"]
            case "set-properties":
                self._made["properties"].update(update["updates"])
            case "remove-properties":
                for key in update["removals"]:
                    self._made["properties"].pop(key, None)
            case "add-schema":
                self._add_schema(update["schema"])
            case "add-view-version":
                self._add_version(update["view-version"])
            case "set-current-view-version":
                self._set_current(update["view-version-id"])
            case other:
                raise ValueError(f"Cannot parse view update: {other}")

    def _add_schema(self, schema: Object) -> None:
        same = (known["schema-id"] for known in self._made["schemas"] if _columns(known) == _columns(schema))
        self._last_schema = next(same, _LAST)
        if self._last_schema == _LAST:
            known = {each["schema-id"] for each in self._made["schemas"]}
            self._last_schema = max(known, default=-1) + 1
            self._made["schemas"].append({**schema, "schema-id": self._last_schema})

    def _add_version(self, version: Object) -> None:
        schema_id = self._last_schema if version["schema-id"] == _LAST else version["schema-id"]
        if schema_id not in {schema["schema-id"] for schema in self._made["schemas"]}:
            raise ValidationException(f"Cannot add version with unknown schema: {schema_id}")
        dialects = [each["dialect"].lower() for each in version["representations"]]
        if twice := sorted({dialect for dialect in dialects if dialects.count(dialect) > 1}):
            raise ValueError(f"Invalid view version: Cannot add multiple queries for dialect {twice[0]}")
        named = {**version, "schema-id": schema_id}
        same = (known["version-id"] for known in self._made["versions"] if _meaning(known) == _meaning(named))
        self._last_version = next(same, _LAST)
        if self._last_version == _LAST:
            known = {each["version-id"] for each in self._made["versions"]}
            self._last_version = max(version["version-id"], max(known, default=0) + 1)
            self._made["versions"].append({**named, "version-id": self._last_version})
            self._added.add(self._last_version)

    def _set_current(self, version_id: int) -> None:
        if version_id == _LAST:
            version_id = self._last_version
        found = self._version(version_id)
        if found is None:
            raise ValidationException(f"Cannot set current version to unknown version: {version_id}")
        if version_id != self._made["current-version-id"]:
            self._made["current-version-id"] = version_id
            at_ms = found["timestamp-ms"] if version_id in self._added else self._now_ms
            self._made["version-log"].append({"timestamp-ms": at_ms, "version-id": version_id})

    def _check_dialects(self) -> None:
        """Refuse that an engine loses its query without having been told."""
        before = _dialects(self._base)
        after = _dialects(self._made)
        if before - after and self._made["properties"].get(_MAY_DROP_DIALECTS, "false").lower() != "true":
            raise ValidationException(
                f"Cannot replace view due to loss of view dialects ({_MAY_DROP_DIALECTS}=false):\n"
                f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}"
            )

    def _expire(self) -> None:
        text = self._made["properties"].get(_VERSIONS_KEPT, str(_VERSIONS_KEPT_DEFAULT))
        if not text.isdigit() or int(text) < 1:
            raise ValidationException(f"{_VERSIONS_KEPT} must be positive but was {text}")
        kept = max(len(self._added), int(text))
        if len(self._made["versions"]) <= kept:
            return
        current = self._made["current-version-id"]
        newest = sorted((each["version-id"] for each in self._made["versions"]), reverse=True)
        ids = {current, *[version_id for version_id in newest if version_id != current][: kept - 1]}
        self._made["versions"] = [each for each in self._made["versions"] if each["version-id"] in ids]
        log: list[Object] = []
        for entry in self._made["version-log"]:
            # With a gap, the entry before it would answer for the time of the version that is gone.
            log = [*log, entry] if entry["version-id"] in ids else []
        self._made["version-log"] = log

    def _version(self, version_id: int) -> Object | None:
        return next((each for each in self._made["versions"] if each["version-id"] == version_id), None)


def _columns(schema: Object) -> Any:
    return schema["fields"], schema.get("identifier-field-ids") or []


def _meaning(version: Object) -> Any:
    keys = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")
    return tuple(version.get(key) for key in keys)


def _dialects(metadata: Object) -> set[str]:
    current = metadata["current-version-id"]
    versions = [version for version in metadata["versions"] if version["version-id"] == current]
    return {each["dialect"].lower() for version in versions for each in version["representations"]}
