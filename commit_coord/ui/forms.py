"""Proves that a form was sent from a page of this server, and not from a page of another server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from commit_coord.ui.visiting import NotAllowed, Visitor

FIELD = "proof"
SHOWN = "shown"
"""The field that says what the page showed when it asked for a confirmation."""


class Proofs:
    """Makes and checks what a form contains, and what no other page can know.

    Args:
        secret: The same in all processes of the server.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, visitor: Visitor) -> str:
        """Return the proof for the forms of *visitor*."""
        return hmac.new(self._secret, b"commit-coord ui\0" + visitor.name.encode(), "sha256").hexdigest()

    def check(self, visitor: Visitor, form: Mapping[str, str]) -> None:
        """Return if the form is one of ours.

        Raises:
            NotAllowed: It is not.
        """
        if not hmac.compare_digest(self.of(visitor).encode(), form.get(FIELD, "").encode()):
            raise NotAllowed("This form is not from this server, or is too old. Open the page again.")
