"""Who asks: nobody by name, a key, a user, or a client whose credentials are exchanged for tokens."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from penstock.connectors.http.client import Http
from penstock.connectors.http.exchange import Transport
from penstock.connectors.oauth import read_token
from penstock.connectors.rest_json.settings import AuthSettings, OAuth
from penstock.connectors.searches import PAGE_PATIENCE
from penstock.connectors.tokens import Tokens
from penstock.model.clock import Clock
from penstock.model.errors import Fatal, Rejected
from penstock.settings.secret import ConfigError, Secret

_USUAL_LIFE = 3_600.0
Headers = dict[str, str]


class Login(Protocol):
    """What says who asks."""

    @property
    def calls(self) -> int:
        """How many calls it has made so far."""

    async def headers(self, *, instead_of: Headers | None = None) -> Headers | None:
        """The headers that say it; None where there are none but `instead_of`, which were refused.

        Raises Fatal, Throttled or Transient.
        """

    async def close(self) -> None:
        """Close its connections."""


def login_of(auth: AuthSettings, clock: Clock, transport: Transport | None) -> Login:
    """The way that the configuration describes."""
    if auth.oauth is not None:
        return ClientLogin(auth.oauth, clock, transport)
    if auth.header is not None:
        name = auth.header.name
        return KeyLogin(auth.header.secret, lambda key: {name: key})
    if auth.bearer is not None:
        return KeyLogin(auth.bearer.secret, _bearer)
    if auth.basic is not None:
        user = auth.basic.user
        return KeyLogin(auth.basic.secret, lambda key: _basic(user, key))
    return NoLogin()


class NoLogin:
    """Everybody may ask."""

    calls = 0

    async def headers(self, *, instead_of: Headers | None = None) -> Headers | None:
        return None if instead_of is not None else {}

    async def close(self) -> None:
        """Nothing is open."""


class KeyLogin:
    """A key that does not end; after a refusal it is looked for anew, since somebody may have replaced it."""

    calls = 0

    def __init__(self, secret: Secret, write: Callable[[str], Headers]) -> None:
        self._secret = secret
        self._write = write
        self._headers: Headers | None = None

    async def headers(self, *, instead_of: Headers | None = None) -> Headers | None:
        if self._headers is None or self._headers == instead_of:
            try:
                self._headers = self._write(self._secret.reveal())
            except ConfigError as error:
                raise Fatal(str(error)) from error
        return None if self._headers == instead_of else self._headers

    async def close(self) -> None:
        """Nothing is open."""


class ClientLogin:
    """The client-credentials grant: tokens that end, renewed before they do."""

    def __init__(self, settings: OAuth, clock: Clock, transport: Transport | None) -> None:
        parts = urlsplit(settings.token_url)
        self._settings = settings
        self._path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
        self._http = Http(f"{parts.scheme}://{parts.netloc}", clock, transport=transport)
        self._tokens = Tokens(self._exchange, clock)

    @property
    def calls(self) -> int:
        return self._http.calls

    async def headers(self, *, instead_of: Headers | None = None) -> Headers | None:
        refused = None if instead_of is None else instead_of["Authorization"].removeprefix("Bearer ")
        return _bearer(await self._tokens.token(instead_of=refused))

    async def close(self) -> None:
        self._tokens.close()
        await self._http.close()

    async def _exchange(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials", "client_id": self._settings.client_id}
        if self._settings.scope is not None:
            form["scope"] = self._settings.scope
        try:
            form["client_secret"] = self._settings.secret.reveal()
            # Alone: a token that answers somebody else's request would open somebody else's account.
            response = await self._http.call(
                "POST", self._path, form=form, repeatable=True, alone=True, patience=PAGE_PATIENCE
            )
        except ConfigError as error:
            raise Fatal(str(error)) from error
        except Rejected as error:
            raise Fatal(f"{error}; check token_url, the client {self._settings.client_id} and its secret") from error
        return read_token(response, self._path, _USUAL_LIFE)


def _bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"}


def _basic(user: str, key: str) -> Headers:
    return {"Authorization": "Basic " + b64encode(f"{user}:{key}".encode()).decode()}
