"""Requests and answers as values, and their JSON. Pure.

Source: Iceberg's ``rest-catalog-open-api.yaml``; the models of schemas, requirements and updates are PyIceberg's.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import orjson
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AssertCreate, TableUpdate
from pyiceberg.typedef import IcebergBaseModel, Identifier
from pyiceberg.view.metadata import ViewVersion

from commit_coord.iceberg.unknown import lost_fields
from commit_coord.iceberg.view_metadata import AnyViewUpdate, SameView
from commit_coord.rest import fields
from commit_coord.rest.requirements import Requirement

M = TypeVar("M", bound=IcebergBaseModel)

Properties = Annotated[dict[str, str], BeforeValidator(fields.texts)]
"""Properties in a request whose body Java reads with Jackson alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request.

    Args:
        method: In upper case.
        path: The raw path, still percent-encoded.
        names: The names in the path, decoded: ``namespace``, ``table``, ``view``.
        query: The query parameters, decoded.
        headers: By lower-case name; the values of a repeated header are joined with a comma.
        body: The body, unchanged.
        peer: The address of the client.
        subject: The subject of the client's certificate, which TLS has verified; "" without a certificate.
        request_id: Identifies the request in logs.
        client: The name of the sender; "" if it is not known.
        sees: Tells whether the client may know that a namespace exists: lists leave the others out.
        found: The state of the store when the first copy of a request with a key began; empty without a key, and for
            the first copy of a commit.
    """

    method: str
    path: str
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""
    subject: str = ""
    request_id: str = ""
    client: str = ""
    sees: Callable[[Identifier], bool] = lambda _: True
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def namespace(self) -> Identifier:
        """The levels of the namespace in the path."""
        return levels(self.names["namespace"])

    @property
    def table(self) -> Identifier:
        """Namespace and name of the table in the path."""
        return (*self.namespace, self.names["table"])

    @property
    def idempotency_key(self) -> str | None:
        """The key with which the client may send the request again; None if it gives none.

        The key of a known client is a UUID made of the key that it sent and of its name. So a key of one client never
        identifies a request of another one: neither an answer that is kept nor a commit in a table.

        Raises:
            MalformedRequest: The key is not a UUID of version 7.
        """
        given = self.headers.get("idempotency-key")
        if given is None:
            return None
        try:
            key = uuid.UUID(given)
        except ValueError:
            key = uuid.UUID(int=0)
        if key.version != 7 or len(given) != 36:
            raise MalformedRequest(f"Invalid Idempotency-Key, not a UUID of version 7: {given}")
        return str(uuid.uuid5(key, self.client) if self.client else key)

    @property
    def view(self) -> Identifier:
        """Namespace and name of the view in the path."""
        return (*self.namespace, self.names["view"])

    @property
    def purges(self) -> bool:
        """Whether the client asks for the files of the table to be deleted."""
        return self.query.get("purgeRequested", "false").lower() == "true"

    @property
    def takes_gzip(self) -> bool:
        """Whether the client accepts answers that are compressed with gzip."""
        offered = (part.strip().partition(";") for part in self.headers.get("accept-encoding", "").split(","))
        return any(coding in ("gzip", "*") and weight.replace(" ", "") not in _REFUSED for coding, _, weight in offered)

    def document(self) -> Any:
        """Return the JSON in the body, as it was sent.

        Raises:
            MalformedRequest: The body is not JSON.
        """
        try:
            return fields.read(self.body)
        except ValueError as error:
            raise MalformedRequest(f"Malformed request: Invalid JSON: {error}") from error

    def parsed(self, model: type[M], document: Any = None) -> M:
        """Return the body as *model*. A field that is null has its default.

        Args:
            model: The class of the result.
            document: The body as :meth:`document` returned it; None reads it.

        Raises:
            MalformedRequest: The body does not fit *model*.
            UnsupportedRequest: It has an update, a requirement or a default value that the models do not know; or
                *model* is a :class:`Body`, and lacks a field of it.
        """
        given = self.document() if document is None else document
        try:
            parsed = model.model_validate(fields.stated(given))
        except ValidationError as error:
            raise _refusal(error) from error
        except NotImplementedError as error:  # of a validator: pydantic collects ValueError and AssertionError alone
            raise UnsupportedRequest(str(error)) from error
        except (AttributeError, KeyError, TypeError) as error:  # from validators of PyIceberg that expect an object
            raise MalformedRequest(f"Malformed request: {type(error).__name__}: {error}") from error
        if isinstance(parsed, Body):
            parsed.refuse_unknown(given)
        return parsed


_REFUSED = frozenset({"q=0", "q=0.0", "q=0.00", "q=0.000"})


class MalformedRequest(ValueError):
    """The request lacks something that its route needs, or cannot be parsed. Nothing was done."""


class UnprocessableRequest(ValueError):
    """The request can be parsed, but contradicts itself. Nothing was done."""


class UnsupportedRequest(Exception):
    """The request is valid, but this server does not do what it asks for. Nothing was done."""


@dataclass(frozen=True, slots=True)
class MetadataHolder:
    """The table or view whose metadata an answer contains.

    Args:
        name: Its name.
        uuid: Its UUID: another one may get the same name later.
        is_view: Whether it is a view.
    """

    name: Identifier
    uuid: str
    is_view: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An HTTP answer.

    Args:
        status: The HTTP status.
        body: The body; empty for 204 and 304.
        headers: All headers except content type and length.
        content_type: The type of the body.
        location: The metadata file whose content is in the body; None if there is none.
        holder: The table or view of this file, if the request has changed it.
        head_moved: Whether a commit was refused because the head had moved: its client will try again.
        stream: Pieces of the body that come one after the other, as long as the client stays; None for a whole body.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    location: str | None = None
    holder: MetadataHolder | None = None
    head_moved: bool = False
    stream: AsyncGenerator[bytes] | None = None

    def of(self, name: Identifier, uuid: object, *, is_view: bool = False) -> HttpAnswer:
        """Return this answer with its holder."""
        return dataclasses.replace(self, holder=MetadataHolder(name, str(uuid), is_view))


def json_answer(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """Return the answer whose body is *document*."""
    return HttpAnswer(status=status, body=orjson.dumps(document), headers=headers or {})


NO_CONTENT = HttpAnswer(status=204)


def levels(text: str) -> Identifier:
    """Return the levels of the namespace *text*: in a path or a query they are separated by ``0x1F``."""
    return tuple(text.split("\x1f"))


_NUL = "a name can't contain NUL: no file store or database takes it"


def refuse_nul(name: str) -> None:
    """Return if *name*, of a path, can be one.

    Raises:
        MalformedRequest: It contains NUL.
    """
    if "\0" in name:
        raise MalformedRequest(_NUL)


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError(_NUL)
    return name


def _of_metadata(location: str) -> str:
    if ".metadata.json" not in location:  # as Java has it
        raise ValueError(f"not a metadata file, whose name contains .metadata.json: {location!r}")
    return location


StoredName = Annotated[str, AfterValidator(_without_nul)]
MetadataLocation = Annotated[str, AfterValidator(_of_metadata)]


class Body(IcebergBaseModel):
    """The whole body of a request. The server drops nothing of it: a field may say what must not be lost."""

    ignored: ClassVar[frozenset[str]] = frozenset()
    """The fields on which nothing depends: clients name in them what the path names."""

    def refuse_unknown(self, given: Mapping[str, Any], where: str = "") -> None:
        """Return if *given*, the JSON of this body, has no other fields.

        What is in a schema, an update or a requirement is compared where the route is known, see :func:`refuse_lost`.

        Raises:
            UnsupportedRequest: It has one.
        """
        for name, model in type(self).model_fields.items():
            part = getattr(self, name)
            if isinstance(part, TableName):
                for lost in lost_fields(given[model.alias or name], part.model_dump()):
                    raise _unknown(f"{where}{model.alias or name}.{lost}")
        known = self.ignored.union(model.alias or name for name, model in type(self).model_fields.items())
        for name in given.keys() - known:
            if given[name] is not None:
                raise _unknown(f"{where}{name}")


def _unknown(field: str) -> UnsupportedRequest:
    return UnsupportedRequest(f"this server does not know the field {field}")


class CreateNamespace(Body):
    """``CreateNamespaceRequest``."""

    namespace: tuple[StoredName, ...]
    properties: Properties = Field(default_factory=dict)


class UpdateNamespace(Body):
    """``UpdateNamespacePropertiesRequest``."""

    removals: list[str] = Field(default_factory=list)
    updates: Properties = Field(default_factory=dict)


class Named(IcebergBaseModel):
    """A request that names what it creates in a namespace."""

    name: StoredName


class CreateTableRequest(Body):
    """``CreateTableRequest``."""

    name: StoredName
    location: str | None = None
    schema_: Annotated[Schema, BeforeValidator(fields.columns)] = Field(alias="schema")
    partition_spec: Annotated[PartitionSpec | None, BeforeValidator(fields.unbound_spec)] = Field(
        alias="partition-spec", default=None
    )
    write_order: SortOrder | None = Field(alias="write-order", default=None)
    stage_create: bool = Field(alias="stage-create", default=False)
    properties: Properties = Field(default_factory=dict)

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec; the unpartitioned one if none is given."""
        return self.partition_spec or UNPARTITIONED_PARTITION_SPEC

    @property
    def order(self) -> SortOrder:
        """The sort order; the unsorted one if none is given."""
        return self.write_order or UNSORTED_SORT_ORDER


class CommitTable(Body):
    """``CommitTableRequest``. The path names the table."""

    ignored = frozenset({"identifier"})

    requirements: tuple[Requirement, ...] = ()
    updates: tuple[Annotated[TableUpdate, BeforeValidator(fields.as_models_take_it)], ...] = ()

    @property
    def creates(self) -> bool:
        """Whether it creates the table."""
        return any(isinstance(requirement, AssertCreate) for requirement in self.requirements)


_REPEATED = frozenset({("add-schema", "last-column-id"), ("set-statistics", "snapshot-id")})
"""Deprecated fields that repeat another one, each with the action of its update."""


def read_commit(request: Request) -> CommitTable:
    """Return the commit that *request* asks for.

    Raises:
        MalformedRequest: The body is not a commit, or has a number that is no integer where one is needed.
        UnsupportedRequest: The commit has a field that PyIceberg's models do not know. They would silently drop it,
            for example the key of an encrypted snapshot.
    """
    given = request.document()
    commit = request.parsed(CommitTable, given)
    _refuse_misread(given, commit)
    return commit


def _refuse_misread(given: Mapping[str, Any], commit: CommitTable | CommitView, where: str = "") -> None:
    """Return if *commit* says what *given* says, the JSON from which it was parsed.

    Raises:
        MalformedRequest: A number is no integer where one is needed.
        UnsupportedRequest: The models lack a field of the request.
    """
    refuse_lost(given.get("requirements") or [], commit.requirements, f"{where}requirements")
    refuse_lost(given.get("updates") or [], commit.updates, f"{where}updates")


def refuse_lost(given: Sequence[Any], parts: Sequence[IcebergBaseModel], where: str = "updates") -> None:
    """Return if *parts*, updates or requirements, contain every field of *given*, from which they were parsed.

    Raises:
        MalformedRequest: A number is no integer where one is needed.
        UnsupportedRequest: The models lack a field of the request.
    """
    for number, (part, parsed) in enumerate(zip(fields.without_redundant(given), parts, strict=True)):
        kept = parsed.model_dump(mode="json")
        _refuse_inexact(part, kept, f"{where}.{number}")
        for lost in lost_fields(part, kept):
            if (part.get("action"), lost) not in _REPEATED:
                raise _unknown(f"{where}.{number}.{lost}")


def _refuse_inexact(given: Any, kept: Any, where: str) -> None:
    for reason in fields.inexact(given, kept, where):
        raise MalformedRequest(f"Malformed request: {reason}")


class RegisterTable(Body):
    """``RegisterTableRequest``."""

    name: StoredName
    metadata_location: MetadataLocation = Field(alias="metadata-location")
    overwrite: bool = False


class CreateView(Body):
    """``CreateViewRequest``."""

    name: StoredName
    location: str | None = None
    schema_: Annotated[Schema, BeforeValidator(fields.columns)] = Field(alias="schema")
    view_version: ViewVersion = Field(alias="view-version")
    properties: dict[str, str] = Field(default_factory=dict)


class RegisterView(Body):
    """``RegisterViewRequest``."""

    name: StoredName
    metadata_location: MetadataLocation = Field(alias="metadata-location")


def read_creation(request: Request, model: type[M]) -> M:
    """Return the table or view that *request* creates.

    Raises:
        MalformedRequest: The body is not such a request.
        UnsupportedRequest: A part of it, such as the schema, has a field that the models do not know and would drop.
    """
    wanted = request.parsed(model)
    given, kept = fields.without_redundant(fields.read(request.body)), wanted.model_dump(mode="json")
    for part in sorted(given.keys() & kept.keys()):
        _refuse_inexact(given[part], kept[part], part)
        for lost in lost_fields(given[part], kept[part]):
            raise _unknown(f"{part}.{lost}")
    return wanted


class CommitView(Body):
    """``CommitViewRequest``. The path names the view."""

    ignored = frozenset({"identifier"})

    requirements: tuple[SameView, ...] = ()
    updates: tuple[Annotated[AnyViewUpdate, BeforeValidator(fields.as_models_take_it)], ...]


def read_view_commit(request: Request) -> CommitView:
    """Return the commit to a view that *request* asks for.

    Raises:
        MalformedRequest: The body is not such a commit.
        UnsupportedRequest: The commit has a field that the models do not know and would silently drop.
    """
    given = request.document()
    commit = request.parsed(CommitView, given)
    _refuse_misread(given, commit)
    return commit


class TableName(IcebergBaseModel):
    """``TableIdentifier``."""

    namespace: tuple[StoredName, ...]
    name: StoredName

    @property
    def identifier(self) -> Identifier:
        """Namespace and name as one tuple."""
        return (*self.namespace, self.name)


class TableChange(CommitTable):
    """``CommitTableRequest`` in a transaction. It names its table itself."""

    ignored = frozenset()

    identifier: TableName


MOST_TABLES = 1000
"""Of a transaction: each waits in a line of its own."""


class CommitTransaction(Body):
    """``CommitTransactionRequest``."""

    table_changes: tuple[TableChange, ...] = Field(alias="table-changes", max_length=MOST_TABLES)


def read_transaction(request: Request) -> CommitTransaction:
    """Return the commit to several tables that *request* asks for.

    Raises:
        MalformedRequest: The body is not such a commit.
        UnsupportedRequest: The commit has a field that the models do not know and would silently drop.
    """
    given = request.document()
    commit = request.parsed(CommitTransaction, given)
    for number, (one, change) in enumerate(zip(given["table-changes"], commit.table_changes, strict=True)):
        change.refuse_unknown(one, f"table-changes.{number}.")
        _refuse_misread(one, change, f"table-changes.{number}.")
    return commit


class _Name(msgspec.Struct):
    namespace: tuple[str, ...]
    name: str


class _Snapshot(msgspec.Struct):
    number: int = msgspec.field(name="snapshot-id")


class _Update(msgspec.Struct):
    action: str
    snapshot: _Snapshot | None = None


class _Commit(msgspec.Struct):
    updates: list[_Update] = []
    changes: list[_Commit] = msgspec.field(name="table-changes", default_factory=list)


class _Change(msgspec.Struct):
    identifier: _Name


class _Changes(msgspec.Struct):
    changes: list[_Change] = msgspec.field(name="table-changes")


def changed_tables(body: bytes) -> list[Identifier]:
    """Return the tables in the body of a ``CommitTransactionRequest``, without parsing the rest of it.

    Raises:
        ValueError: The body is not such a request, or names too many tables.
    """
    found = [change.identifier for change in msgspec.json.decode(body, type=_Changes).changes]
    if len(found) > MOST_TABLES:
        raise ValueError(f"a transaction has {MOST_TABLES} tables at most")
    return [(*each.namespace, each.name) for each in found]


def added_snapshots(body: bytes) -> frozenset[int]:
    """Return the ids of the snapshots that a ``CommitTableRequest`` or ``CommitTransactionRequest`` adds.

    Raises:
        ValueError: The body is not such a request.
    """
    commit = msgspec.json.decode(body, type=_Commit)
    updates = [update for each in (commit, *commit.changes) for update in each.updates]
    return frozenset(each.snapshot.number for each in updates if each.action == "add-snapshot" and each.snapshot)


class RenameTable(Body):
    """``RenameTableRequest``."""

    source: TableName
    destination: TableName


def table_names(identifiers: Sequence[Identifier]) -> list[dict[str, Any]]:
    """Return *identifiers* as a list of ``TableIdentifier``."""
    return [{"namespace": list(namespace), "name": name} for *namespace, name in identifiers]


def _refusal(error: ValidationError) -> MalformedRequest | UnsupportedRequest:
    reasons = error.errors(include_url=False)
    where = ".".join(map(str, reasons[0]["loc"]))
    match reasons[0]:
        case {"type": "union_tag_invalid", "ctx": {"tag": unknown}} | {
            "type": "literal_error",
            "loc": ("requirements", _, "type"),
            "input": unknown,
        }:
            return UnsupportedRequest(f"this server does not know {unknown!r} in {where}")
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return MalformedRequest(f"Malformed request: {where + ': ' if where else ''}{reasons[0]['msg']}{more}")
