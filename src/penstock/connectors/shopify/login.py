"""Who asks: an app with its client credentials, whose tokens live a day, or whoever has an admin token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.connectors.http.client import Http
from penstock.connectors.oauth import read_token
from penstock.connectors.tokens import Tokens
from penstock.model.clock import Clock
from penstock.model.errors import Fatal, Rejected
from penstock.settings.secret import ConfigError, Secret

PATH = "/admin/oauth/access_token"
_USUAL_LIFE = 86_400.0


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """An app of the store's own organisation; the secret is read anew for every token."""

    client_id: str
    client_secret: Secret


class Login(Protocol):
    """Where tokens come from."""

    async def token(self, *, instead_of: str | None = None) -> str:
        """A token; never `instead_of`, which was refused. Raises Fatal, Throttled or Transient."""

    def close(self) -> None:
        """Give up an exchange that is under way."""


class AppLogin(Tokens):
    """The client-credentials grant: a token of 24 hours, renewed before its end."""

    def __init__(self, credentials: ClientCredentials, http: Http, clock: Clock) -> None:
        super().__init__(self._exchange_credentials, clock)
        self._credentials = credentials
        self._http = http

    async def _exchange_credentials(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials", "client_id": self._credentials.client_id}
        try:
            form["client_secret"] = self._credentials.client_secret.reveal()
            # Alone: a token that answers somebody else's request would open somebody else's store.
            response = await self._http.call("POST", PATH, form=form, repeatable=True, alone=True)
        except ConfigError as error:
            raise Fatal(str(error)) from error
        except Rejected as error:
            raise Fatal(f"{error}; check the store, the client {self._credentials.client_id} and its secret") from error
        return read_token(response, PATH, _USUAL_LIFE)


class AdminToken:
    """A token that does not end; after a refusal it is looked for anew, since somebody may have replaced it."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._token: str | None = None

    async def token(self, *, instead_of: str | None = None) -> str:
        if self._token is None or self._token == instead_of:
            try:
                self._token = self._secret.reveal()
            except ConfigError as error:
                raise Fatal(str(error)) from error
            if self._token == instead_of:
                raise Fatal(f"Shopify refuses the admin token ({self._secret}); check the token and the store")
        return self._token

    def close(self) -> None:
        """Nothing is under way."""
