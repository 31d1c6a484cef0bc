"""``POST /v1/oauth/tokens``: gives a token for a client's name and secret, or for a token that is still valid."""

from __future__ import annotations

import base64
from urllib.parse import parse_qs, unquote_plus

from commit_coord.rest.access import NotAuthenticated
from commit_coord.rest.gate import Gate
from commit_coord.rest.identities import Identities
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import HttpAnswer, Request, json_answer

_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name of the protocol # nosec B105
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


class TokenEndpoint:
    """Gives tokens to the clients in the file of clients.

    Args:
        identities: Checks the credentials.
        gate: Records refusals in the audit log.
    """

    def __init__(self, identities: Identities, gate: Gate) -> None:
        self._identities, self._gate = identities, gate

    def give(self, warehouse: Warehouse, request: Request) -> HttpAnswer:
        """Answer with a token, or with the error code of OAuth."""
        form = {name: values[-1] for name, values in parse_qs(request.body.decode("latin-1")).items()}
        grant = form.get("grant_type")
        try:
            credentials = _basic(request)
            if grant == "client_credentials" or (grant == _EXCHANGE and credentials is not None):
                client, secret = credentials or (form.get("client_id", ""), form.get("client_secret", ""))
                token = self._identities.token(client, secret)
            elif grant == _EXCHANGE:
                token = self._identities.exchanged(form.get("subject_token", ""))
            else:
                return _refused(400, "unsupported_grant_type", "client_credentials and token-exchange are supported")
        except NotAuthenticated as error:
            self._gate.audit(request, None, error)
            return _refused(401, "invalid_client", str(error), {"www-authenticate": 'Basic realm="commit-coord"'})
        own = self._identities.own
        assert own is not None, "the route is served with it"
        return json_answer(
            {
                "access_token": token,
                "token_type": "bearer",  # no secret # nosec B105
                "expires_in": own.lifetime_s,
                "issued_token_type": _ACCESS_TOKEN,
            },
            headers={"cache-control": "no-store"},
        )


def _basic(request: Request) -> tuple[str, str] | None:
    """Return name and secret from the header ``Authorization``, None if it contains something else, such as a token."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError as error:  # also if a character is none of ASCII's, or the bytes are no text
        raise NotAuthenticated("the credentials are not well formed", given=True) from error
    return unquote_plus(name), unquote_plus(secret)


def _refused(status: int, error: str, description: str, headers: dict[str, str] | None = None) -> HttpAnswer:
    return json_answer({"error": error, "error_description": description}, status, headers)
