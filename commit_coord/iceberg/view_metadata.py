"""The metadata of views: read, written and changed as Iceberg's specification of views and its Java library do.

Source: Iceberg specification, "View Spec"; Java ``ViewMetadata``, ``ViewMetadataParser``, ``BaseViewOperations``.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, assert_never

from pydantic import Field
from pydantic_core import from_json
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.utils.properties import property_as_bool, property_as_int
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from commit_coord.iceberg.column_types import with_all_types
from commit_coord.iceberg.unknown import lost_fields
from commit_coord.iceberg.usable import FAR, VERSION_OF_DEFAULTS, refuse_columns

_FORMAT_VERSION: Literal[1] = 1
_LAST_ADDED = -1
"""Instead of an id: that of what the same commit added last."""

_HISTORY_SIZE = "version.history.num-entries"
_HISTORY_SIZE_DEFAULT = 10
_MAY_DROP_DIALECT = "replace.drop-dialect.allowed"
_COMPRESSION = "write.metadata.compression-codec"
_METADATA_PATH = "write.metadata.path"


@dataclass(frozen=True, slots=True)
class ViewPointer:
    """Where the metadata of a view is, and where it was before."""

    location: str
    previous: str | None = None


class InvalidView(ValueError):
    """The view would make no sense. Nothing was changed."""


class AddViewVersion(IcebergBaseModel):
    """``AddViewVersionUpdate``."""

    action: Literal["add-view-version"] = "add-view-version"
    view_version: ViewVersion = Field(alias="view-version")


class SetCurrentViewVersion(IcebergBaseModel):
    """``SetCurrentViewVersionUpdate``."""

    action: Literal["set-current-view-version"] = "set-current-view-version"
    view_version_id: int = Field(alias="view-version-id")


ViewUpdate = (
    AssignUUIDUpdate
    | UpgradeFormatVersionUpdate
    | AddSchemaUpdate
    | SetLocationUpdate
    | SetPropertiesUpdate
    | RemovePropertiesUpdate
    | AddViewVersion
    | SetCurrentViewVersion
)
"""What a commit may change."""

AnyViewUpdate = Annotated[ViewUpdate, Field(discriminator="action")]
"""A :data:`ViewUpdate`, read from JSON."""


class SameView(IcebergBaseModel):
    """``AssertViewUUID``: it is still the same view, and not one that was made anew under its name."""

    type: Literal["assert-view-uuid"] = "assert-view-uuid"
    uuid: str

    def validate(self, base: ViewMetadata) -> None:  # type: ignore[override]
        """Return if the requirement is met.

        Raises:
            CommitFailedException: It is not.
        """
        if self.uuid.lower() != base.view_uuid.lower():
            raise CommitFailedException(
                f"Requirement failed: view UUID does not match: expected {base.view_uuid} != {self.uuid}"
            )


def created(
    schema: Schema,
    version: ViewVersion,
    location: str,
    properties: dict[str, str],
    now_ms: int,
    view_uuid: str,
) -> ViewMetadata:
    """Return the metadata of a new view.

    Args:
        schema: Of its rows; its id is assigned here.
        version: Its only version; the id of its schema is set here.
        location: The folder of its files.
        properties: Of the view.
        now_ms: The time.
        view_uuid: Its UUID.

    Raises:
        InvalidView: It has no query, or several for one dialect; or a property makes no sense.
    """
    empty = ViewMetadata.model_construct(
        view_uuid=view_uuid,
        format_version=_FORMAT_VERSION,
        location=location,
        schemas=[],
        current_version_id=0,
        versions=[],
        version_log=[],
        properties=dict(properties),
    )
    return changed(
        empty,
        [
            AddSchemaUpdate(schema_=schema),
            AddViewVersion(view_version=version.model_copy(update={"schema_id": _LAST_ADDED})),
            SetCurrentViewVersion(view_version_id=_LAST_ADDED),
        ],
        now_ms,
    )


def changed(base: ViewMetadata, updates: Sequence[ViewUpdate], now_ms: int) -> ViewMetadata:
    """Return *base* with *updates* applied in their order; *base* itself when they change nothing.

    A schema or version that the view has already is used again, whatever id the update says. Where several clients
    replaced the view, ids follow each other in the order of the commits.

    Raises:
        InvalidView: The updates do not fit the view.
    """
    draft = _Draft(base, now_ms)
    for update in updates:
        draft.apply(update)
    return draft.finished()


class _Draft:
    """A view that is being changed."""

    def __init__(self, base: ViewMetadata, now_ms: int) -> None:
        self._base, self._now_ms = base, now_ms
        self._uuid, self._location = base.view_uuid, base.location
        self._schemas = list(base.schemas)
        self._versions = list(base.versions)
        self._current = base.current_version_id
        self._properties = dict(base.properties)
        self._added: set[int] = set()
        self._last_schema: int | None = None
        self._last_version: int | None = None
        self._became_current: ViewHistoryEntry | None = None

    def apply(self, update: ViewUpdate) -> None:
        match update:
            case AssignUUIDUpdate():
                if str(update.uuid) != self._uuid:
                    raise InvalidView("Cannot reassign uuid")
            case UpgradeFormatVersionUpdate():
                self._require_version(update.format_version)
            case AddSchemaUpdate():
                self._add_schema(update.schema_)
            case SetLocationUpdate():
                self._location = update.location
            case SetPropertiesUpdate():
                self._properties |= update.updates
            case RemovePropertiesUpdate():
                for key in update.removals:
                    self._properties.pop(key, None)
            case AddViewVersion():
                self._add_version(update.view_version)
            case SetCurrentViewVersion():
                self._set_current(update.view_version_id)
            case _:
                assert_never(update)

    def _require_version(self, number: int) -> None:
        if number < _FORMAT_VERSION:
            raise InvalidView(f"Cannot downgrade v{_FORMAT_VERSION} view to v{number}")
        if number > _FORMAT_VERSION:
            raise InvalidView(f"Unsupported format version: {number}")

    def _add_schema(self, schema: Schema) -> None:
        try:
            refuse_columns(schema, VERSION_OF_DEFAULTS)
        except ValueError as error:
            raise InvalidView(str(error)) from error
        same = (known.schema_id for known in self._schemas if known == schema)
        self._last_schema = next(same, None)
        if self._last_schema is None:
            self._last_schema = max((known.schema_id + 1 for known in self._schemas), default=0)
            self._schemas.append(schema.model_copy(update={"schema_id": self._last_schema}))

    def _add_version(self, given: ViewVersion) -> None:
        schema_id = given.schema_id
        if schema_id == _LAST_ADDED:
            if self._last_schema is None:
                raise InvalidView("Cannot set last added schema: no schema has been added")
            schema_id = self._last_schema
        if schema_id not in {schema.schema_id for schema in self._schemas}:
            raise InvalidView(f"Cannot add version with unknown schema: {schema_id}")
        _refuse_dialects(given)
        if given.version_id >= FAR:
            raise InvalidView(f"the version id {given.version_id} is too high: the view could give no other after it")
        version = given.model_copy(update={"schema_id": schema_id})
        for known in self._versions:
            if _same(known, version):
                self._last_version = known.version_id
                return
        self._last_version = max((version.version_id, *(known.version_id + 1 for known in self._versions)))
        self._versions.append(version.model_copy(update={"version_id": self._last_version}))
        self._added.add(self._last_version)

    def _set_current(self, version_id: int) -> None:
        if version_id == _LAST_ADDED:
            if self._last_version is None:
                raise InvalidView("Cannot set last version id: no current version id has been set")
            version_id = self._last_version
        if version_id == self._current:
            return
        version = next((known for known in self._versions if known.version_id == version_id), None)
        if version is None:
            raise InvalidView(f"Cannot set current version to unknown version: {version_id}")
        self._current = version_id
        at_ms = version.timestamp_ms if version_id in self._added else self._now_ms
        self._became_current = ViewHistoryEntry(timestamp_ms=at_ms, version_id=version_id)

    def finished(self) -> ViewMetadata:
        if not self._versions:
            raise InvalidView("Invalid view: no versions were added")
        current = next(version for version in self._versions if version.version_id == self._current)
        may_drop_dialect = self._may_drop_dialect()
        if self._base.versions and not may_drop_dialect:
            before = next(one for one in self._base.versions if one.version_id == self._base.current_version_id)
            _refuse_lost_dialects(before, current)
        versions, log = self._kept(current)
        made = self._base.model_copy(
            update={
                "location": self._location,
                "schemas": self._schemas,
                "current_version_id": self._current,
                "versions": versions,
                "version_log": log,
                "properties": self._properties,
            }
        )
        return self._base if made == self._base else made

    def _may_drop_dialect(self) -> bool:
        value = self._properties.get(_MAY_DROP_DIALECT)
        try:
            return property_as_bool(self._properties, _MAY_DROP_DIALECT, False)
        except ValueError as error:
            if self._base.versions and value == self._base.properties.get(_MAY_DROP_DIALECT):
                return False  # another client has set it, and Java reads it so
            raise InvalidView(f"{_MAY_DROP_DIALECT} must be true or false but was {value}") from error

    def _kept(self, current: ViewVersion) -> tuple[list[ViewVersion], list[ViewHistoryEntry]]:
        """Return the versions and the log without what is too old."""
        log = [*self._base.version_log, *([self._became_current] if self._became_current else [])]
        size = _history_size(self._properties)
        limit = max(len(self._added | {self._current}), size)
        if len(self._versions) <= limit:
            return self._versions, log
        newest = sorted(self._versions, key=lambda version: -version.version_id)
        others = [version for version in newest if version.version_id != self._current]
        versions = [current, *others[: limit - 1]]
        ids = {version.version_id for version in versions}
        unknown = [place for place, entry in enumerate(log) if entry.version_id not in ids]
        return versions, log[unknown[-1] + 1 if unknown else 0 :]


def _history_size(properties: dict[str, str]) -> int:
    try:
        size = property_as_int(properties, _HISTORY_SIZE, _HISTORY_SIZE_DEFAULT) or 0
    except ValueError as error:
        raise InvalidView(str(error)) from error
    if size <= 0:
        raise InvalidView(f"{_HISTORY_SIZE} must be positive but was {size}")
    return size


def _same(one: ViewVersion, other: ViewVersion) -> bool:
    """Return whether two versions mean the same: all but id and time."""
    unimportant = {"version_id": 0, "timestamp_ms": 0}
    return one.model_copy(update=unimportant) == other.model_copy(update=unimportant)


def _dialects(version: ViewVersion) -> list[str]:
    return [representation.root.dialect.lower() for representation in version.representations]


def _refuse_dialects(version: ViewVersion) -> None:
    dialects = _dialects(version)
    if not dialects:
        raise InvalidView("Invalid view version: it has no query")
    for dialect in dialects:
        if dialects.count(dialect) > 1:
            raise InvalidView(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")


def _refuse_lost_dialects(before: ViewVersion, after: ViewVersion) -> None:
    lost = set(_dialects(before)) - set(_dialects(after))
    if lost:
        raise InvalidView(
            f"Cannot replace view due to loss of view dialects ({_MAY_DROP_DIALECT}=false):\n"
            f"Previous dialects: {sorted(_dialects(before))}\nNew dialects: {sorted(_dialects(after))}"
        )


def schema_of(metadata: ViewMetadata) -> Schema:
    """Return the schema of the current version.

    Raises:
        InvalidView: The metadata has no such version or schema.
    """
    version = current_version(metadata)
    for schema in metadata.schemas:
        if schema.schema_id == version.schema_id:
            return schema
    raise InvalidView(f"Cannot find current schema with id {version.schema_id}")


def current_version(metadata: ViewMetadata) -> ViewVersion:
    """Return the current version.

    Raises:
        InvalidView: The metadata has none.
    """
    for version in metadata.versions:
        if version.version_id == metadata.current_version_id:
            return version
    raise InvalidView(f"Cannot find current version {metadata.current_version_id} in view versions")


def file_location(metadata: ViewMetadata, version: int, name: str) -> str:
    """Return where version number *version* of a metadata file goes; *name* makes it the only one there.

    As Java does it, and as it names files that are gzipped, which they are unless a property says otherwise.
    """
    codec = metadata.properties.get(_COMPRESSION, "gzip").lower()
    folder = metadata.properties.get(_METADATA_PATH, f"{metadata.location.rstrip('/')}/metadata").rstrip("/")
    return f"{folder}/{version:05d}-{name}{'.gz' if codec == 'gzip' else ''}.metadata.json"


def dump(metadata: ViewMetadata, location: str) -> bytes:
    """Return the bytes of the metadata file for *location*, gzipped when the name says so."""
    data = metadata.model_dump_json(exclude=None if metadata.properties else {"properties"}).encode()
    return gzip.compress(data, compresslevel=6) if _is_gzipped(location) else data


def read(io: FileIO, location: str) -> ViewMetadata:
    """Return the metadata in the file at *location*.

    Raises:
        FileNotFoundError: There is no such file.
        InvalidView: It has no metadata of a view.
    """
    return read_with_unknown(io, location)[0]


def read_with_unknown(io: FileIO, location: str) -> tuple[ViewMetadata, list[str]]:
    """Return the metadata in the file at *location*, and the paths of the fields there that the models do not know.

    Raises:
        FileNotFoundError: There is no such file.
        InvalidView: It has no metadata of a view.
    """
    with io.new_input(location).open() as stream:
        data = stream.read()
    try:
        raw = from_json(gzip.decompress(data) if _is_gzipped(location) else data)
        known = {**raw, "schemas": with_all_types(raw.get("schemas"))} if isinstance(raw, dict) else raw
        metadata = ViewMetadata.model_validate(known)
        schema_of(metadata)
    except (ValueError, OSError) as error:
        raise InvalidView(f"no metadata of a view: {location}: {error}") from error
    return metadata, list(lost_fields(raw, metadata.model_dump(mode="json")))


def _is_gzipped(location: str) -> bool:
    return location.endswith((".gz.metadata.json", ".metadata.json.gz"))
