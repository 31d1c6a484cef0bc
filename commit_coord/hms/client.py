"""A client of a Hive Metastore: its calls for tables and databases; those for locks are in ``locks``.

Names are folded to lower case here, as the servers keep them; lock tables up to 2.3 would treat them as different.
What a table or database looks like stays Thrift's: PyIceberg's ``HiveCatalog`` makes and reads these objects. So the
methods have Thrift's names, and the client can be used where ``HiveCatalog`` expects an open Thrift client.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self
from urllib.parse import parse_qs, urlencode
from uuid import uuid4

from hive_metastore.ttypes import EnvironmentContext, GetTableRequest, GetTablesRequest

from commit_coord import doubt
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, InvalidArguments, UpdatesDoNotFit
from commit_coord.hms.calls import MetastoreCaller
from commit_coord.hms.connection import (
    AlreadyExists,
    InvalidObject,
    InvalidOperation,
    LostReply,
    MetaError,
    MetastoreAccess,
    MetastoreServerFailed,
    NoSuchObject,
    NotSent,
    UnknownMethod,
)
from commit_coord.hms.locks import ThriftLockCalls
from commit_coord.model import is_encodable

logger = logging.getLogger(__name__)

CREATION = "commit-coord.creation-id"
"""The parameter of a database that tells which call has created it."""

_REFUSED_DROPS = ("Can not drop default database", "Database not dropped since ", "Table metadata not deleted since ")


class MetastoreClient(ThriftLockCalls):
    """A client of one metastore, which may have several servers. Thread safe.

    Args:
        uris: ``thrift://host:port``, several separated by commas.
        access: How to talk to them.
        caller: Makes what makes the calls.

    Raises:
        ConfigError: A URI is malformed.
    """

    def __init__(
        self,
        uris: str,
        access: MetastoreAccess,
        *,
        caller: Callable[[str, MetastoreAccess], MetastoreCaller] = MetastoreCaller,
    ) -> None:
        super().__init__(caller(uris, access))
        self.addresses, self.access = self._caller.addresses, access
        self.calls: Counter[str] = self._caller.sent
        """Round trips so far, by call."""

    @property
    def failures(self) -> int:
        """Calls so far that were not answered: the servers were away, or seemed so."""
        return self._caller.failures

    @classmethod
    def of(cls, text: str) -> MetastoreClient:
        """Return the client for what :attr:`service` returned for another one."""
        uris, _, query = text.partition("?")
        options = {key: values[-1] for key, values in parse_qs(query).items()}
        return cls(
            uris,
            MetastoreAccess(
                timeout_ms=int(options.get("timeout-ms", MetastoreAccess().timeout_ms)),
                ugi=options.get("ugi"),
                kerberos_service=options.get("kerberos-service"),
            ),
        )

    @property
    def service(self) -> str:
        """The servers and how to talk to them, as one text."""
        options = {
            "timeout-ms": str(self.access.timeout_ms),
            "ugi": self.access.ugi,
            "kerberos-service": self.access.kerberos_service,
        }
        return f"{','.join(self.addresses)}?{urlencode({k: v for k, v in options.items() if v is not None})}"

    @property
    def address(self) -> str:
        """The server that is used at present."""
        return self._caller.pool.address

    def close(self) -> None:
        """Close the idle connections. May be called again, and the client may be used again."""
        self._caller.pool.close()

    def __enter__(self) -> Self:
        """Return the client itself, as ``HiveCatalog`` expects of what it opens for each call."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing: the connections stay open."""

    # Tables.

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        """Return a table.

        Hive 4 has only the newer call, Hive 2.2 and before only the older one.

        Raises:
            NoSuchObject: There is none.
        """
        db, table = dbname.lower(), tbl_name.lower()
        try:
            return self._caller.repeat("get_table_req", GetTableRequest(dbName=db, tblName=table)).table
        except UnknownMethod:
            return self._caller.repeat("get_table", db, table)

    def get_all_tables(self, db_name: str) -> list[str]:
        """Return the names of all tables of a database, of whatever kind; none where there is no database."""
        return list(self._caller.repeat("get_all_tables", db_name.lower()))

    def get_table_objects_by_name(self, dbname: str, tbl_names: Sequence[str]) -> list[Any]:
        """Return those of the tables that exist."""
        db, names = dbname.lower(), [name.lower() for name in tbl_names]
        try:
            request = GetTablesRequest(dbName=db, tblNames=names)
            return list(self._caller.repeat("get_table_objects_by_name_req", request).tables)
        except UnknownMethod:
            return list(self._caller.repeat("get_table_objects_by_name", db, names))

    def create_table(self, tbl: Any) -> None:
        """Create a table.

        Raises:
            AlreadyExists: There is one, perhaps by an earlier try of this one.
            LostReply: It may exist now, or later.
        """
        self._caller.send("create_table", tbl)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        """As :meth:`alter_table`, with Thrift's own arguments."""
        self._caller.send(
            "alter_table_with_environment_context", dbname.lower(), tbl_name.lower(), new_tbl, environment_context
        )

    def alter_table(
        self, db: str, table: str, new: Any, *, expected: tuple[str, str] | None, server: str | None = None
    ) -> None:
        """Replace a table, all of it.

        Args:
            db: Where it is now.
            table: Its name now.
            new: What it becomes.
            expected: The parameter and the value that it must have for that, where the server honours it.
            server: Send it to this one and no other.

        Raises:
            NoSuchObject: There is no such table.
            MetaError: The server refused it; also when the parameter has another value.
            FailedOver: *server* is not the one in use; nothing was sent.
            LostReply: It may have been carried out, or will be.
        """
        properties = {"DO_NOT_UPDATE_STATS": "true"}
        if expected is not None:
            properties |= {"expected_parameter_key": expected[0], "expected_parameter_value": expected[1]}
        context = EnvironmentContext(properties=properties)
        self._caller.send(
            "alter_table_with_environment_context", db.lower(), table.lower(), new, context, server=server
        )

    def drop_table(self, dbname: str, name: str, deleteData: bool) -> None:  # noqa: N803 - Thrift's names
        """Drop a table.

        Raises:
            NoSuchObject: There is none.
            LostReply: It may be gone.
        """
        self._caller.send("drop_table", dbname.lower(), name.lower(), deleteData)

    # Databases.

    def get_all_databases(self) -> list[str]:
        """Return the names of all databases."""
        return list(self._caller.repeat("get_all_databases"))

    def get_database(self, name: str) -> Any:
        """Return a database. Raises NoSuchObject where there is none."""
        return self._caller.repeat("get_database", name.lower())

    @doubt.sending(AlreadyExists, CommitNotApplied, InvalidArguments, NotSent)
    def create_database(self, database: Any) -> None:
        """Create a database, with a mark by which this call finds its own.

        A refusal is one if it comes twice: a server's database may carry out later what it did not answer.

        Raises:
            InvalidArguments: A property is no text. Nothing was sent.
            AlreadyExists: There is another one of that name.
            CommitNotApplied: The server refuses it; if for its name, it is ``UpdatesDoNotFit``.
            NotSent: Nothing was sent.
            CommitStateUnknown: It is not known whether it was created.
        """
        _refuse_no_text(database)
        database.parameters = {**(database.parameters or {}), CREATION: uuid4().hex}
        try:
            self._create(database)
        except InvalidObject as error:
            raise _refused(database.name, "created", error) from error
        except (MetaError, MetastoreServerFailed):
            try:
                self._create(database)
            except (AlreadyExists, InvalidObject, NotSent) as error:
                raise _unknown(database.name, "created", error) from error
            except (MetaError, MetastoreServerFailed) as error:
                raise CommitNotApplied(f"the namespace was not created: {error}", namespace=database.name) from error

    def _create(self, database: Any) -> None:
        try:
            self._caller.send("create_database", database)
        except (AlreadyExists, LostReply, MetaError, MetastoreServerFailed) as error:
            # 1. The server creates the database and gets no answer of its own.   2. It tries again, and finds ours.
            in_doubt = isinstance(error, LostReply)
            try:
                found = self.get_database(database.name).parameters or {}
                if found.get(CREATION) == database.parameters[CREATION]:
                    return
            except NoSuchObject:
                in_doubt = in_doubt or isinstance(error, AlreadyExists)  # it may have been ours, and was dropped since
            except Exception as unseen:
                raise _unknown(database.name, "created", error) from unseen
            if in_doubt:
                raise _unknown(database.name, "created", error) from error
            raise

    def alter_database(self, dbname: str, db: Any) -> None:
        """Replace a database's properties.

        A refusal is one if it comes twice, as in :meth:`create_database`. The call is sent again only if the database
        is seen to be as it was: another client may have changed it.

        Raises:
            InvalidArguments: A property is no text. Nothing was sent.
            NoSuchObject: There is none of that name.
            CommitNotApplied: The server refuses it.
            NotSent: Nothing was sent.
            CommitStateUnknown: It is not known whether they were replaced.
        """
        _refuse_no_text(db)
        before, is_refused = self.get_database(dbname), False
        with doubt.sending(CommitNotApplied, NoSuchObject, NotSent):
            while True:
                try:
                    self._caller.send("alter_database", dbname.lower(), db)
                    return
                except (LostReply, MetaError, MetastoreServerFailed, NoSuchObject, NotSent) as error:
                    is_answer = isinstance(error, MetaError | MetastoreServerFailed)
                    if not is_refused and isinstance(error, NoSuchObject | NotSent):
                        raise
                    if not is_answer or not self._is_still(before):
                        raise _unknown(dbname, "changed", error) from error
                    if is_refused:
                        raise CommitNotApplied(f"the namespace was not changed: {error}", namespace=dbname) from error
                    is_refused = True

    def _is_still(self, database: Any) -> bool:
        try:
            return bool(self.get_database(database.name) == database)
        except Exception:
            logger.warning("the namespace %s could not be read", database.name, exc_info=True)
            return False

    @doubt.sending(CommitNotApplied, InvalidOperation, NotSent)
    def drop_database(self, name: str, deleteData: bool, cascade: bool) -> None:  # noqa: N803 - Thrift's
        """Drop a database that was seen. The call is sent once, as that of a table.

        Raises:
            InvalidOperation: It is not empty.
            CommitNotApplied: The server refuses that (``UpdatesDoNotFit``).
            CommitStateUnknown: It is not known whether it was dropped; by us, if the answer is that there is none.
        """
        try:
            self._caller.send("drop_database", name.lower(), deleteData, cascade)
        except (LostReply, MetaError, MetastoreServerFailed, NoSuchObject) as error:
            if is_refused_drop(error):
                raise _refused(name, "dropped", error) from error
            raise _unknown(name, "dropped", error) from error
        except InvalidOperation as error:
            if "not empty" in str(error):
                raise
            raise _refused(name, "dropped", error) from error

    def version(self) -> str:
        """Return what the server says of its version; up to Hive 3 that is the one of its interface."""
        return str(self._caller.repeat("getVersion"))

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """See :meth:`MetastoreCaller.within`."""
        return self._caller.within(seconds)


def is_refused_drop(error: Exception) -> bool:
    """Return whether a server answered a drop with *error* before it had dropped anything.

    Only its text proves that: a listener that fails at its notification answers with a ``MetaException``, too.

    Source: ``HMSHandler.drop_table_core``, ``drop_database``: these words come before the transaction ends.
    """
    return isinstance(error, MetaError) and str(error).startswith(_REFUSED_DROPS)


def _refuse_no_text(database: Any) -> None:
    """Return if Thrift can send *database*: it finds out only while it writes."""
    given = {
        **(database.parameters or {}),
        "location": database.locationUri or "",
        "comment": database.description or "",
    }
    for key, value in given.items():
        if not isinstance(value, str) or not is_encodable(value):
            raise InvalidArguments("a property of a namespace is no text: give a text", key=key, value=repr(value))


def _refused(namespace: str, what: str, error: Exception) -> UpdatesDoNotFit:
    return UpdatesDoNotFit(f"the namespace was not {what}: {error}", namespace=namespace)


def _unknown(namespace: str, what: str, error: Exception) -> CommitStateUnknown:
    return CommitStateUnknown(
        f"it is not known whether the namespace was {what} ({error}); look at it before you repeat the call",
        namespace=namespace,
    )


def client_of(properties: Mapping[str, str], *, timeout_ms: int) -> MetastoreClient:
    """Return the client for PyIceberg's ``HiveCatalog`` properties: ``uri``, ``ugi``, ``hive.kerberos-*``."""
    kerberos = properties.get("hive.kerberos-authentication", "false").lower() == "true"
    return MetastoreClient(
        properties["uri"],
        MetastoreAccess(
            timeout_ms=timeout_ms,
            ugi=properties.get("ugi"),
            kerberos_service=properties.get("hive.kerberos-service-name", "hive") if kerberos else None,
        ),
    )
