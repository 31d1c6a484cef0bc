"""The public keys of an issuer, behind a URL.

Known keys are used at once, also old ones: one thread fetches them again meanwhile. Only a request that is signed with
a key that is not known waits for the fetch, and no longer than the fetch may take.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
import urllib.request
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from joserfc.errors import JoseError
from joserfc.jwk import KeySet

logger = logging.getLogger(__name__)

FETCH_S = 5.0
"""How long a fetch may take as a whole."""
_FETCH_AGAIN_S = 10
_MAX_KEYS_BYTES = 1024 * 1024


class FetchedKeys:
    """The keys behind a URL. Thread safe; never blocks.

    Args:
        url: The URL of a JSON Web Key Set.
        lifetime_ms: After this time the keys are old.
    """

    def __init__(self, url: str, lifetime_ms: int) -> None:
        self._url, self._lifetime_s = url, lifetime_ms / 1000
        self._known: KeySet | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._fetch: Future[None] | None = None
        self._mutex = threading.Lock()

    @property
    def known(self) -> KeySet | None:
        """The keys that were fetched last; None if there are none. Old ones are fetched again meanwhile."""
        if self._known is not None and time.monotonic() - self._fetched_at > self._lifetime_s:
            self.fetching()
        return self._known

    def fetching(self) -> Future[None] | None:
        """Return the fetch that runs or begins now; it has no result. None if the last one was too short a time ago.

        A failure is logged, and the known keys stay in use.
        """
        with self._mutex:
            now = time.monotonic()
            if self._fetch is not None:
                return self._fetch if now - self._tried_at <= FETCH_S else None  # a name server may not answer either
            if now - self._tried_at <= _FETCH_AGAIN_S:
                return None
            self._tried_at, self._fetch = now, Future()
            fetch = self._fetch
        threading.Thread(target=self._run, args=(fetch,), name="issuer-keys", daemon=True).start()
        return fetch

    def _run(self, fetch: Future[None]) -> None:
        try:
            self._known = key_set(_content(self._url))
            self._fetched_at = time.monotonic()
        except Exception as error:  # noqa: BLE001 - whatever the issuer sends, and a connection that is cut at the end
            logger.error("the keys of the issuer can't be fetched: %s: %s", self._url, error)
        finally:
            with self._mutex:
                self._fetch = None
            fetch.set_result(None)


def key_set(text: bytes) -> KeySet:
    """Return the keys in *text*.

    Raises:
        ValueError: *text* contains none.
    """
    try:
        return KeySet.import_key_set(json.loads(text))
    except (JoseError, KeyError, TypeError) as error:
        raise ValueError(f"this is no JSON Web Key Set: {type(error).__name__}: {error}") from error


def _content(url: str) -> bytes:
    """Return what is at *url*.

    Raises:
        OSError: It cannot be read, or did not arrive within the time of a fetch.
        HTTPException: The answer is not HTTP.
    """
    cut = _Cut()
    end = threading.Timer(FETCH_S, cut.now)
    end.daemon = True
    end.start()
    try:
        # The configuration accepts https, and http on loopback.
        opener = urllib.request.build_opener(_Http(cut), _Https(cut))
        with opener.open(url, timeout=FETCH_S) as answer:
            content: bytes = answer.read(_MAX_KEYS_BYTES)
    finally:
        end.cancel()
    if cut.is_over:
        raise TimeoutError(f"no answer within {FETCH_S:g} s")
    return content


class _Cut:
    """Ends all reads of a fetch.

    The timeout of a socket is for each read: an issuer that sends a byte now and then would never reach it.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._sockets: list[socket.socket] = []

    def keep(self, opened: socket.socket) -> None:
        """Cut *opened* too, at the end or at once if the end is over."""
        self._sockets.append(opened)
        if self.is_over:
            self.now()

    def now(self) -> None:
        """Cut all connections. Who reads from one gets an error, or an answer that ends too early."""
        self.is_over = True
        for opened in self._sockets:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(opened, socket.SHUT_RDWR)  # that of TLS would not be safe in another thread


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, *, cut: _Cut, **options: Any) -> None:
        super().__init__(host, **options)
        self._cut = cut

    def connect(self) -> None:
        super().connect()
        self._cut.keep(self.sock)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Connection, cut=self._cut), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_TlsConnection, cut=self._cut), req)
