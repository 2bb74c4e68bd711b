"""The refresh grant of OAuth 2: a refresh token is exchanged for access tokens of an hour.

Login with Amazon and Google's logins are the same, field by field. One `Login` serves every account that the refresh
token opens, and is asked as `Tokens` are.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.connectors.http.client import Http, NotJson, Response
from penstock.connectors.tokens import Tokens
from penstock.model.clock import Clock
from penstock.model.errors import Fatal, Rejected, Transient
from penstock.settings.secret import ConfigError, Secret

_USUAL_LIFE = 3_600.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What opens an account; the secrets are read anew for every exchange."""

    client_id: str
    client_secret: Secret
    refresh_token: Secret


class Login(Tokens):
    """Access tokens of one refresh token, asked for at `path` of the login service.

    `token` raises Fatal when the credentials are wrong or revoked, Throttled or Transient when there is no answer now.
    """

    def __init__(self, credentials: Credentials, http: Http, clock: Clock, path: str) -> None:
        super().__init__(self._refresh, clock)
        self.credentials = credentials
        self._http = http
        self._path = path

    async def _refresh(self) -> tuple[str, float]:
        form = {"grant_type": "refresh_token", "client_id": self.credentials.client_id}
        try:
            form["client_secret"] = self.credentials.client_secret.reveal()
            form["refresh_token"] = self.credentials.refresh_token.reveal()
            # Alone: a token that answers somebody else's request would open somebody else's account.
            response = await self._http.call("POST", self._path, form=form, repeatable=True, alone=True)
        except ConfigError as error:
            raise Fatal(str(error)) from error
        except Rejected as error:
            raise Fatal(f"{error}; check the client and the refresh token of {self.credentials.client_id}") from error
        return read_token(response, self._path, _USUAL_LIFE)


def read_token(response: Response, path: str, usual_life: float) -> tuple[str, float]:
    """The token in an answer, and for how many seconds it is good. Raises Transient where there is none to be used."""
    try:
        answer = response.json()
    except NotJson:
        answer = None
    found = answer if isinstance(answer, dict) else {}
    token, life = found.get("access_token"), found.get("expires_in", usual_life)
    usable = isinstance(life, int | float) and not isinstance(life, bool) and 0 < life < 10 * usual_life
    if not isinstance(token, str) or not token or not token.isprintable() or not token.isascii() or not usable:
        raise Transient(f"POST {path}: the answer has no access token that can be used")
    return token, float(life)
