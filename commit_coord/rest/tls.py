"""TLS for uvicorn: certificates from files that may change, and the subject of the client's certificate."""

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
"""The key of the client certificate's subject in the state of a connection."""

_MAX_HEAD_BYTES = 64 * 1024


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return a context that uses, in each handshake, the certificates that the files contain at that time.

    Raises:
        ConfigError: The files are not valid now.
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
        """Use the current certificates; called in every handshake, even if the client names no server."""
        connection.context = current.get()

    context = _context(tls)
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
    """uvicorn's HTTP; it also passes the client certificate's subject on, and limits the length of a head."""

    _head_bytes: int | None = 0
    """Length of the head so far; None once the head is complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection whose handshake is done."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(binary_form=True) if connection is not None else None
        if certificate is not None:
            subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
            self.app_state: dict[str, Any] = {**self.app_state, SUBJECT: subject}

    def data_received(self, data: bytes) -> None:
        """Accept a part of a request."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()  # close() would wait until the client has sent everything

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self._head_bytes = 0
        super().on_message_complete()
