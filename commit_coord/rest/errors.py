"""The answer to a request that ended in an exception: status, type and message.

Java's clients compare the beginnings of some messages, so these messages are Java's own. The outcome decides the
status: a commit that conflicts with the table gets 409, and one that did not land because a service or the file store
failed gets 503. An unknown outcome gets 500 and never a 4xx, because clients delete the files of a commit that was
refused.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
    ViewAlreadyExistsError,
)
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import InterfaceError, OperationalError

from commit_coord.errors import (
    CheckpointInTable,
    ClientStops,
    CommitConflict,
    CommitCoordError,
    CommitLockFailed,
    CommitNotApplied,
    CommitStateUnknown,
    ConfigError,
    LockError,
    LockServiceUnavailable,
    MetastoreUnavailable,
    StaleRead,
    UpdatesDoNotFit,
)
from commit_coord.iceberg.view_metadata import InvalidView
from commit_coord.redaction import without_passwords
from commit_coord.rest.access import Forbidden, IssuerUnavailable, NotAuthenticated
from commit_coord.rest.routing import MethodNotAllowed, NoRoute
from commit_coord.rest.wire import (
    HttpAnswer,
    MalformedRequest,
    UnprocessableRequest,
    UnsupportedRequest,
    json_answer,
)

logger = logging.getLogger(__name__)


class NoSuchWarehouse(LookupError):
    """The server serves no catalog of this name."""


class Overloaded(Exception):
    """The server accepts no more requests now. Nothing was done.

    Args:
        reason: Why.
        retry_after_s: When the client may send the request again.
    """

    def __init__(self, reason: str, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(reason)


def stopping() -> Overloaded:
    """Return the reason for which a server that stops refuses what has not begun."""
    return Overloaded("the server is stopping; ask another one, or this one when it is back")


class StillRunning(Exception):
    """The first request with the same key still runs, or its outcome is not known. Send it again with the same key."""


class AnswerGone(Exception):
    """The request was executed, but what its answer would contain can't be read, or does not exist any more.

    A 4xx would say that it was not executed: a client then deletes the files of its commit. After a 503 it would send
    the request again, and take the table that it has created for another client's.
    """


AWAY = (OperationalError, InterfaceError, MetastoreUnavailable, LockError)
"""A service did not answer. This copy of the request did nothing, but an earlier one may have been carried out."""


@contextmanager
def executed(name: Identifier, *, has_key: bool = False) -> Iterator[None]:
    """Let the block answer a request that was executed and that has changed the table or view *name*.

    Args:
        name: The table or view.
        has_key: Whether the client may send the request again: its effect is found by its key.

    Raises:
        AnswerGone: Whatever the block raises, unless *has_key* and a service is away: that error is a 503.
    """
    try:
        yield
    except Exception as error:
        if has_key and isinstance(error, AWAY):
            raise
        raise AnswerGone(
            f"the request was executed, but {'.'.join(name)} can't be read, or was changed or dropped since, so the "
            "original answer can't be given; load it to see its state, and do not repeat the request"
        ) from error


class BodyTimeout(Exception):
    """The body of the request did not arrive in time. Nothing was done."""


class BodyTooLarge(Exception):
    """The body of the request is longer than the server accepts. Nothing was done."""


_MEANINGS: tuple[tuple[type[Exception], HTTPStatus, str], ...] = (
    (CommitStateUnknownException, HTTPStatus.INTERNAL_SERVER_ERROR, "CommitStateUnknownException"),
    (AnswerGone, HTTPStatus.INTERNAL_SERVER_ERROR, "CommitStateUnknownException"),
    (StaleRead, HTTPStatus.BAD_REQUEST, "ValidationException"),  # after a 409 the client would retry
    (UpdatesDoNotFit, HTTPStatus.BAD_REQUEST, "ValidationException"),
    (CommitConflict, HTTPStatus.CONFLICT, "CommitFailedException"),
    (CommitLockFailed, HTTPStatus.CONFLICT, "CommitFailedException"),
    (CommitNotApplied, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (CommitFailedException, HTTPStatus.CONFLICT, "CommitFailedException"),
    (NoSuchTableError, HTTPStatus.NOT_FOUND, "NoSuchTableException"),
    (NoSuchViewError, HTTPStatus.NOT_FOUND, "NoSuchViewException"),
    (NoSuchNamespaceError, HTTPStatus.NOT_FOUND, "NoSuchNamespaceException"),
    (NoSuchWarehouse, HTTPStatus.NOT_FOUND, "NoSuchWarehouseException"),
    (FileNotFoundError, HTTPStatus.NOT_FOUND, "NotFoundException"),
    (NotAuthenticated, HTTPStatus.UNAUTHORIZED, "NotAuthorizedException"),
    (Forbidden, HTTPStatus.FORBIDDEN, "ForbiddenException"),
    (NoRoute, HTTPStatus.NOT_FOUND, "NoSuchEndpointException"),
    (MethodNotAllowed, HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowedException"),
    (TableAlreadyExistsError, HTTPStatus.CONFLICT, "AlreadyExistsException"),
    (ViewAlreadyExistsError, HTTPStatus.CONFLICT, "AlreadyExistsException"),
    (NamespaceAlreadyExistsError, HTTPStatus.CONFLICT, "AlreadyExistsException"),
    (NamespaceNotEmptyError, HTTPStatus.CONFLICT, "NamespaceNotEmptyException"),
    (UnprocessableRequest, HTTPStatus.UNPROCESSABLE_ENTITY, "UnprocessableEntityException"),
    (UnsupportedRequest, HTTPStatus.NOT_ACCEPTABLE, "UnsupportedOperationException"),
    (MalformedRequest, HTTPStatus.BAD_REQUEST, "BadRequestException"),
    (Overloaded, HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequestsException"),
    (BodyTimeout, HTTPStatus.REQUEST_TIMEOUT, "BadRequestException"),
    (BodyTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BadRequestException"),
    (InvalidView, HTTPStatus.BAD_REQUEST, "IllegalArgumentException"),
    (ValidationException, HTTPStatus.BAD_REQUEST, "ValidationException"),
    (ValidationError, HTTPStatus.BAD_REQUEST, "ValidationException"),
    (ConfigError, HTTPStatus.BAD_REQUEST, "ValidationException"),
    (StillRunning, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (IssuerUnavailable, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (ClientStops, HTTPStatus.TOO_MANY_REQUESTS, "TooManyRequestsException"),
    (LockError, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (MetastoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (OperationalError, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (InterfaceError, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
    (CommitCoordError, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"),
    (ValueError, HTTPStatus.BAD_REQUEST, "IllegalArgumentException"),
)
"""The first one that fits is meant, so what is narrow comes before what is wide."""


def error_answer(error: Exception) -> HttpAnswer:
    """Return the answer for *error*. An unexpected error is logged, and the client does not see its text."""
    if (meaning := _meaning(error)) is not None:
        status, kind = meaning
        if isinstance(error, OperationalError | InterfaceError):
            logger.error("the catalog's database failed: %s", error.orig)
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            is_expected = isinstance(error, AnswerGone | CommitStateUnknown) and isinstance(
                error.__cause__, OSError | CommitCoordError | NoSuchTableError | NoSuchViewError | None
            )
            logger.error("a request ended in %s: %s", kind, error, exc_info=None if is_expected else error)
        return _answer(status, kind, _message(error), error)
    logger.error("a request ended in an unexpected error", exc_info=error)
    text = f"{type(error).__name__}; the server's log says more"
    return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", text, error)


_FINAL = (CheckpointInTable, StaleRead, UpdatesDoNotFit)
"""A retry of a commit that was refused with one of these is refused, too."""


def is_refusal(error: Exception) -> bool:
    """Return whether the answer for *error* is a 4xx: it tells the client that nothing was done."""
    meaning = _meaning(error)
    return meaning is not None and meaning[0] < HTTPStatus.INTERNAL_SERVER_ERROR


def is_final(error: Exception) -> bool:
    """Return whether every repeat of a request that ended in *error* ends in the same 4xx, now and later."""
    if isinstance(error, LockError | FileNotFoundError | Overloaded | BodyTimeout | StillRunning):
        return False
    if isinstance(error, CommitNotApplied) and not isinstance(error, CommitConflict):
        return False  # a service failed, or the latch was not granted
    return is_refusal(error)


def _meaning(error: Exception) -> tuple[HTTPStatus, str] | None:
    """Return the status and the type of the answer for *error*; None if this error is unexpected."""
    meant, cause = error, error.__cause__
    if isinstance(error, CommitNotApplied) and isinstance(
        cause, LockServiceUnavailable | MetastoreUnavailable | OperationalError | InterfaceError | ClientStops
    ):
        meant = cause  # Nothing was sent. This is no conflict, and an immediate retry does not help.
    at_fault = cause if isinstance(error, CommitNotApplied) else error
    if isinstance(at_fault, OSError) and at_fault.errno == errno.ENAMETOOLONG:
        return HTTPStatus.BAD_REQUEST, "ValidationException"
    return next(((status, kind) for expected, status, kind in _MEANINGS if isinstance(meant, expected)), None)


def _message(error: Exception) -> str:
    """Return the message of *error*; that of a refused commit begins with the reason, which Java's clients compare."""
    if isinstance(error, OperationalError | InterfaceError):  # its text contains the statement
        # Each change of a catalog whose COMMIT was sent ends well, or with CommitStateUnknown.
        return (
            "the catalog's database can't be reached, or did not answer; this request changed nothing; if it was sent "
            "before, send it again with the same Idempotency-Key"
        )
    return without_passwords(str(error)).removeprefix("the commit did not land: ")


def _answer(status: HTTPStatus, kind: str, message: str, error: Exception) -> HttpAnswer:
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(error.retry_after_s)
    elif status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        headers["retry-after"] = "1"
    elif isinstance(error, NotAuthenticated):
        invalid = f', error="invalid_token", error_description="{error}"' if error.given else ""
        headers["www-authenticate"] = f'Bearer realm="commit-coord"{invalid}'
    elif isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    answer = json_answer({"error": {"message": message, "type": kind, "code": int(status)}}, status, headers)
    return dataclasses.replace(answer, head_moved=isinstance(error, CommitConflict) and not isinstance(error, _FINAL))
