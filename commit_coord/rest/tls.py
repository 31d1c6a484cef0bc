"""TLS under uvicorn: certificates from files that may change, and who the client's certificate is for."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from cryptography import x509
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from commit_coord.errors import ConfigError
from commit_coord.rest.files import Reloaded
from commit_coord.rest.settings import Tls

SUBJECT = "commit_coord.subject"
"""Where a connection's state has the subject of the client's certificate."""

_MAX_HEAD_BYTES = 64 * 1024


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return a context whose handshakes use the certificates that are in the files by then.

    Raises:
        ConfigError: They make no sense.
    """
    try:
        current = Reloaded(tls.files, lambda: _context(tls))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            "the TLS files can't be used",
            key="tls",
            certificate=tls.certificate,
            client_ca=tls.client_ca,
            accepted=f"a certificate and its key, in PEM: {error}",
        ) from error

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """Called in every handshake, whether or not the client names a server."""
        connection.context = current.get()

    context = _context(tls)
    context.sni_callback = choose
    return context


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    if tls.client_ca is not None:
        # No client comes back with a session of before: its certificate may be signed by nobody who counts now.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(tls.client_ca)
    return context


def _no_password() -> str:
    """Refuse to ask the terminal."""
    raise ValueError("the key has a password")


class Protocol(HttpToolsProtocol):
    """HTTP as uvicorn has it; the application learns of the client's certificate, and a head has an end."""

    _head_bytes: int | None = 0
    """Of the head that comes in; None behind it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, after its handshake."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(binary_form=True) if connection is not None else None
        if certificate is not None:
            subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
            self.app_state: dict[str, Any] = {**self.app_state, SUBJECT: subject}

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()  # to close it would be to read on, until the client has had its say

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request."""
        self._head_bytes = 0
        super().on_message_complete()
