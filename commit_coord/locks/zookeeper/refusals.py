"""Translates kazoo's errors into ours; no other module does this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.base import Interrupted
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.driver import KazooTimeoutError, LastWarning, kazoo_errors
from commit_coord.locks.zookeeper.nodes import MultiRefused, NodeOperation, Reason


class Refusals:
    """Creates our errors for refused or unanswered requests to the servers at *access*."""

    def __init__(self, access: EnsembleAccess) -> None:
        self._access = access

    def unanswered(self, log: LastWarning) -> Interrupted:
        """Return the error for a connection that was not established in time."""
        return Interrupted("ZooKeeper did not answer", servers=self._access.hosts, last_warning=log.last or None)

    def closed(self) -> Interrupted:
        """Return the error for a connection that was closed during a request."""
        return Interrupted("the connection to ZooKeeper was closed", servers=self._access.hosts)

    def ended(self) -> LockServiceUnavailable:
        """Return the error for a call during which the client was closed: it opens no new session."""
        return LockServiceUnavailable(
            "the client was closed while a call waited for ZooKeeper",
            servers=self._access.hosts,
            accepted="a new call, which opens a new session",
        )

    @contextmanager
    def translated(self, client: Any, path: str | None = None) -> Iterator[None]:
        """Translate kazoo's errors into ours; *path*: the node that the request is about."""
        try:
            yield
        except kazoo_errors.ConnectionClosedError as error:
            # kazoo raises this also if a signal handler raised while kazoo wrote into its pipe.
            raise self.closed() from error
        except (
            KazooTimeoutError,
            kazoo_errors.ConnectionLoss,
            kazoo_errors.OperationTimeoutError,
            kazoo_errors.SessionExpiredError,
            kazoo_errors.SessionMovedError,
        ) as error:
            raise Interrupted(
                "ZooKeeper did not answer",
                servers=self._access.hosts,
                reason=type(error).__name__,
                last_warning=client.logger.last or None,
            ) from error
        except kazoo_errors.AuthFailedError as error:
            raise LockServiceUnavailable(
                "ZooKeeper authentication failed",
                servers=self._access.hosts,
                auth=self._access.auth,
                reason=client.logger.last or error,
                accepted=self._access.accepted_login,
            ) from error
        except kazoo_errors.NoAuthError as error:
            raise self.denied(path) from error
        except kazoo_errors.KazooException as error:
            raise LockServiceUnavailable(
                "ZooKeeper refused a request",
                servers=self._access.hosts,
                reason=f"{type(error).__name__} {error}".strip(),
            ) from error

    def refused(self, index: int, operation: NodeOperation, error: Exception) -> Exception:
        """Return our error for *error*, the answer to *operation*, which has number *index* in its multi."""
        match error:
            case kazoo_errors.NodeExistsError():
                return MultiRefused(index, Reason.EXISTS)
            case kazoo_errors.NoNodeError():
                return MultiRefused(index, Reason.MISSING)
            case kazoo_errors.NotEmptyError():
                return MultiRefused(index, Reason.NOT_EMPTY)
            case kazoo_errors.BadVersionError():
                return MultiRefused(index, Reason.VERSION)
            case kazoo_errors.NoAuthError():
                return self.denied(operation.path)
            case _:
                return LockServiceUnavailable(
                    "ZooKeeper refused a request",
                    servers=self._access.hosts,
                    path=operation.path,
                    reason=f"{type(error).__name__} {error}".strip(),
                )

    def denied(self, path: str | None) -> LockServiceUnavailable:
        """Return the error for a node at *path* whose ACL does not allow access."""
        return LockServiceUnavailable(
            "ZooKeeper denies access: the ACL of a node does not include this client",
            servers=self._access.hosts,
            path=path,
            auth=self._access.auth,
            user=self._access.user or None,
            accepted="the lock.zk.auth of the client that created the nodes, or a lock.zk.acl of that client that "
            "includes this one",
        )
