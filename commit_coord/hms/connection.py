"""One connection to one Hive Metastore server. Thrift's untyped world ends here.

A call ends in one of four ways, and callers need to tell them apart:

- an answer: a result, or an exception that the server declares (``MetaException``, ``NoSuchObjectException``, …);
- :class:`UnknownMethod` or :class:`MetastoreServerFailed`: the server answered that it lacks this call, or broke in it;
- :class:`NotSent`: the call never left, so nothing happened;
- :class:`LostReply`: it may have been carried out, and it may still be, long after we gave up.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from socket import create_connection
from typing import Any
from urllib.parse import urlsplit

from hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TSaslClientTransport, TTransportException

from commit_coord.errors import ConfigError, MetastoreUnavailable
from commit_coord.process import is_of_signal_handler


class _Declared:
    """An error that the server declares. Thrift's own errors are frozen, so context managers can't set a traceback."""

    message: str

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return str(self.message)


class AlreadyExists(_Declared, ttypes.AlreadyExistsException):  # type: ignore[misc]
    """There is one of that name."""


class InvalidObject(_Declared, ttypes.InvalidObjectException):  # type: ignore[misc]
    """The server does not take it as it is."""


class InvalidOperation(_Declared, ttypes.InvalidOperationException):  # type: ignore[misc]
    """The server does not do that: a database that is not empty, a change of a column that it forbids."""


class MetaError(_Declared, ttypes.MetaException):  # type: ignore[misc]
    """The server failed, or refuses."""


class NoSuchObject(_Declared, ttypes.NoSuchObjectException):  # type: ignore[misc]
    """There is none of that name."""


class NoSuchLock(_Declared, ttypes.NoSuchLockException):  # type: ignore[misc]
    """The lock was released or timed out."""


class LockOfTransaction(MetaError):
    """The lock belongs to a transaction, whose end releases it."""


_DECLARED = {
    ttypes.TxnOpenException: LockOfTransaction,
    **{
        kind.__mro__[2]: kind
        for kind in (AlreadyExists, InvalidObject, InvalidOperation, MetaError, NoSuchObject, NoSuchLock)
    },
}


class NotSent(MetastoreUnavailable):
    """No server could be reached; nothing was sent."""


class LostReply(MetastoreUnavailable):
    """The call was sent and no answer came. It may have been carried out, or will be later."""


class UnknownMethod(Exception):
    """The server's version has no such call."""


class MetastoreServerFailed(Exception):
    """The server answered that it failed, without an exception of its interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastoreAccess:
    """The settings of a connection to a metastore.

    Args:
        timeout_ms: For connecting, and for the answer to every call.
        ugi: ``user:group,…`` that the calls are made as, on servers without authentication.
        kerberos_service: The service part of the servers' principals; None does not authenticate.
    """

    timeout_ms: int = 30_000
    ugi: str | None = None
    kerberos_service: str | None = None


class MetastoreConnection:
    """An open connection. Not for two threads at a time.

    Args:
        address: ``thrift://host:port``.
        access: How to talk to it.
        connect_ms: For connecting, where that is less than for calls.

    Raises:
        NotSent: The server can't be reached, or authentication failed.
    """

    def __init__(self, address: str, access: MetastoreAccess, *, connect_ms: int | None = None) -> None:
        self.address = address
        self.clean = True
        """Whether every call was answered to its end, so that the next answer belongs to the next call."""
        self._answered = False
        parts = urlsplit(address)
        self._socket = TSocket()
        self._transport = _transport(self._socket, str(parts.hostname), access)
        self._timeout_ms = access.timeout_ms
        limit_ms = min(access.timeout_ms, connect_ms or access.timeout_ms)
        self._client = ThriftHiveMetastore.Client(TBinaryProtocolAccelerated(self._transport))
        try:
            # Not by Thrift, which logs an error for each server that does not answer.
            self._socket.setHandle(create_connection((parts.hostname, parts.port), limit_ms / 1000))
            if access.kerberos_service is not None:
                self._authenticate(address, access)
            if access.ugi:
                self._client.set_ugi(*access.ugi.split(":"))
        except NotSent:
            self.close()
            raise
        except Exception as error:
            self.close()
            if is_of_signal_handler(error):
                raise
            raise NotSent("the metastore can't be reached", uri=address, cause=_reason(error)) from error

        # A client that nobody closed. In a forked child it does nothing: the parent still speaks by this connection.
        weakref.finalize(self, _close, self._transport, os.getpid()).atexit = False

    def _authenticate(self, address: str, access: MetastoreAccess) -> None:
        try:
            self._transport.open()
        except Exception as error:
            raise NotSent(
                "metastore authentication failed",
                uri=address,
                service=access.kerberos_service,
                accepted="a ticket that is valid (kinit), and hive.kerberos-service-name as in the servers' principal",
                cause=_reason(error),
            ) from error

    @property
    def healthy(self) -> bool:
        """Whether the connection is still open, as far as can be seen without a call."""
        return bool(self._socket.isOpen())

    def call(self, name: str, *arguments: Any, patience_ms: int = 0, limit_ms: int | None = None) -> Any:
        """Return what the server answers to *name*; wait *patience_ms* longer than usual, at most *limit_ms*.

        Raises:
            LostReply: It was sent, and no answer came.
            UnknownMethod: The server has no such call.
            MetastoreServerFailed: The server broke in it.
            Exception: What the server declares for this call.
        """
        self.clean, usual_ms = False, self._timeout_ms + patience_ms
        limit_ms = usual_ms if limit_ms is None else min(usual_ms, limit_ms)
        self._socket.handle.settimeout(limit_ms / 1000)
        try:
            result = getattr(self._client, name)(*arguments)
        except TApplicationException as error:
            if error.type == TApplicationException.UNKNOWN_METHOD:
                self.clean = True
                raise UnknownMethod(name) from error
            raise MetastoreServerFailed(f"{name}: {error.message}") from error
        except (TTransportException, TProtocolException, OSError, EOFError) as error:
            raised = getattr(error, "inner", None) or error  # Thrift's errors carry those of the socket
            if is_of_signal_handler(raised):
                raise raised from None
            late = isinstance(raised, TimeoutError)
            raise LostReply(
                "the metastore did not answer the call in time" if late else "the metastore did not answer",
                uri=self.address,
                call=name,
                cause=_reason(error),
                **(_patience(limit_ms) if late else self._advice(error)),
            ) from error
        except TException as error:
            self.clean = True
            raise _DECLARED.get(type(error), MetaError)(str(getattr(error, "message", error))) from None
        self.clean = self._answered = True
        return result

    def _advice(self, error: Exception) -> dict[str, str]:
        """Return what to try when the other end hung up at the first word."""
        if self._answered or getattr(error, "type", None) != TTransportException.END_OF_FILE:
            return {}
        return {"accepted": "hive.kerberos-authentication=true, if it closes connections that do not authenticate"}

    def close(self) -> None:
        """Close it; may be called again."""
        self._transport.close()


def _close(transport: Any, pid: int) -> None:
    if pid == os.getpid():
        transport.close()


def _transport(socket: Any, host: str, access: MetastoreAccess) -> Any:
    if access.kerberos_service is None:
        return TBufferedTransport(socket)
    try:
        return TSaslClientTransport(socket, host=host, service=access.kerberos_service)
    except Exception as error:  # ImportError without pure-sasl, an error of its own without kerberos
        raise ConfigError(
            "missing optional dependency of Kerberos",
            key="hive.kerberos-authentication",
            accepted="pip install 'commit-coord[hive]' kerberos",
            cause=error,
        ) from error


def _patience(limit_ms: int) -> dict[str, str]:
    return {"waited_ms": str(limit_ms), "accepted": "a longer hive.client-timeout-ms, if the server is only slow"}


def _reason(error: BaseException) -> str:
    """Return what went wrong below Thrift, where it says so."""
    inner = getattr(error, "inner", None)
    return str(inner or getattr(error, "message", None) or error) or type(error).__name__
