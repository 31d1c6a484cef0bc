"""Connections for uvicorn: TLS with certificates from files that may change, and the limits of strangers."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import httptools
from cryptography import x509
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from commit_coord.errors import ConfigError
from commit_coord.rest.delivery import Delivery
from commit_coord.rest.files import Reloaded
from commit_coord.rest.settings import Limits, Tls

logger = logging.getLogger(__name__)

SUBJECT = "commit_coord.subject"
"""The key of the client certificate's subject in the state of a connection."""

_MAX_HEAD_BYTES = 64 * 1024
"""Of a head; and of what is neither head nor body in one piece: the sizes of chunks, and the trailers."""

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
"""The headers that say that a request has a body."""


def certificates(tls: Tls) -> Reloaded[ssl.SSLContext]:
    """Return the certificates that the files contain, as they were read last.

    Raises:
        ConfigError: The files are not valid now.
    """
    try:
        return Reloaded(tls.files, lambda: _context(tls))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            "the TLS files can't be used",
            key="tls",
            certificate=tls.certificate,
            client_ca=tls.client_ca,
            accepted=f"a certificate and its key, in PEM: {error}",
        ) from error


def tls_context(tls: Tls, current: Reloaded[ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context that uses the certificates of *current* in each handshake, which reads no file: that may block.

    Raises:
        OSError: The files are not valid now.
        ValueError: As OSError.
    """

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Use the current certificates; called in every handshake, even if the client names no server."""
        connection.context = current.value

    context = _context(tls)  # also for what no callback can change any more, such as whether to ask for a certificate
    context.sni_callback = choose
    return context


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    if tls.client_ca is not None:
        # A resumed session would skip the check of the client's certificate, whose CA may have been removed since.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(tls.client_ca)
    return context


def _no_password() -> str:
    """Raise instead of asking for the password on the terminal."""
    raise ValueError("the key has a password")


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP; it also passes the client certificate's subject on, and bounds what a stranger may take.

    A head has a length and a time limit. The time counts from the beginning of the connection, or from the first byte
    after a request. A body that is sent although the request was answered has the time limit of bodies. Between two
    requests, uvicorn's keep-alive counts. The text between and after the pieces of a chunked body has the length limit
    of heads, and has no effect: a header that comes after the head is ignored. A client that takes nothing of its
    answer for the time limit of bodies is cut off.

    ``Upgrade`` is ignored, as HTTP allows: Java's client sends it with each request without TLS. CONNECT is refused.
    Behind a request that is refused or cannot be parsed, nothing is read any more. The complete requests before it get
    their own answers.

    The parser takes the body of a request with ``Upgrade`` for the next request. So it is then given a head of ours,
    with the same framing headers and without ``Upgrade``: it reads the body behind that head, as it reads all others.

    Args:
        given: As for uvicorn's protocol.
        limits: The limits.
        named: As for uvicorn's protocol.
    """

    def __init__(self, *given: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    _is_in_head = True
    """Whether a head is due or incomplete."""
    _other_bytes = 0
    """What has arrived since the head began, or since the last piece of its body."""

    _head_for_body: bytes | None = None
    """What the parser is given as soon as it pauses behind the head of a request with ``Upgrade`` and a body."""
    _is_in_own_head = False
    """Whether the parser reads that head."""

    delivery: Delivery
    """Of the answers; there is one as soon as there is a connection."""
    _answered: RequestResponseCycle | None = None
    """The request that is being answered; uvicorn's cycle is the one that arrived last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection whose handshake is done."""
        super().connection_made(transport)
        self.delivery = Delivery(transport, self._limits.body_timeout_ms)
        self._limit_time(self._limits.head_timeout_ms)
        connection = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(binary_form=True) if connection is not None else None
        if certificate is not None:
            subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
            self.app_state: dict[str, Any] = {**self.app_state, SUBJECT: subject}

    def data_received(self, data: bytes) -> None:
        """Accept a part of a request."""
        if self.transport.is_closing():
            return  # TLS passes on what arrives behind the end, and uvicorn would carry it out
        self._other_bytes += len(data)
        if self._is_in_head:
            self._limit_time(self._limits.head_timeout_ms)
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        try:
            while rest:
                rest = self._parsed(rest)
        except httptools.HttpParserError:
            self._refuse()
        if self._other_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()  # close() would wait until the client has sent everything

    def _parsed(self, data: memoryview) -> memoryview:
        """Parse *data*; return what is behind a request that asked for an upgrade: the parser pauses there."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            if (head := self._head_for_body) is not None:
                self._head_for_body, self._is_in_own_head = None, True
                self.parser = httptools.HttpRequestParser(self)  # the old one may read nothing behind Connection: close
                self.parser.feed_data(head)
            return data[pause.args[0] :]
        return data[:0]

    def _refuse(self) -> None:
        """Answer nothing that comes from now on: nobody knows where a request begins.

        A 400 is sent only if it can't be taken for the answer to a request that is complete, and may be carried out.
        """
        logger.warning("a request that is not valid HTTP/1.1 was refused; it came from %s", self.client)
        if not self._is_in_head and self.pipeline:  # the broken request is behind others
            self.pipeline.popleft()
            before = self.pipeline[0][0] if self.pipeline else self._answered
            assert before is not None, "a request waits in the pipeline for the answer to the one before"
            self.cycle, self._is_in_head = before, True
        if not self._is_in_head:
            self.cycle.disconnected = True  # it is not complete, so the application does not carry it out
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        elif self.cycle is not None and not self.cycle.response_complete:  # type: ignore[redundant-expr] # None at first
            self.cycle.keep_alive = False
            return
        self.send_400_response("Invalid HTTP request received.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_time_limit()
        self.delivery.end()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True  # or it would go on to write
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Note the beginning of a request, which may be behind another one in the same packet."""
        if self._is_in_own_head:
            return
        self._limit_time(self._limits.head_timeout_ms)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Note a piece of the URL."""
        if not self._is_in_own_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header, unless it is a trailer: a proxy may pass on what it would not allow in a head."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note the end of the head.

        Raises:
            ValueError: The request is a CONNECT. The parser makes an HttpParserError of it.
        """
        if self._is_in_own_head:
            self._is_in_own_head = False
            return
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("CONNECT")
        super().on_headers_complete()
        self._is_in_head = False
        self._end_time_limit()
        framing = [b"%s: %s" % each for each in self.headers if each[0] in _FRAMING]
        if self.parser.should_upgrade() and framing:
            kept = [] if self.cycle.keep_alive else [b"connection: close"]
            self._head_for_body = b"\r\n".join([b"POST / HTTP/1.1", *framing, *kept, b"", b""])

    def on_body(self, body: bytes) -> None:
        """Accept a piece of a body, whose length others limit."""
        self._other_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of the request; not that of a head behind which the body still comes."""
        if self._head_for_body is not None:
            return
        self._is_in_head = True
        self._other_bytes = 0
        self._end_time_limit()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note the end of the answer, which waits for the client from now on."""
        self.delivery.sent()
        super().on_response_complete()
        if not self._is_in_head:
            self._limit_time(self._limits.body_timeout_ms)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _limit_time(self, limit_ms: int) -> None:
        """Close the connection after *limit_ms*, unless a time limit runs already."""
        if self._timer is None:
            self._timer = self.loop.call_later(limit_ms / 1000, self._expired, limit_ms)

    def _end_time_limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self, limit_ms: int) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr] # None at first
            self.transport.abort()
        else:
            self._limit_time(limit_ms)  # The answer to the request before is due, and nothing is read until then.
