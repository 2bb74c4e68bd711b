"""Login with Amazon: a refresh token is exchanged for access tokens of an hour.

One `Lwa` serves every profile that the refresh token opens. It asks for a new token shortly before the old one expires,
and once however many callers need it; a failure is told to all that waited for it.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass

from penstock.clock import Clock
from penstock.connectors.http import Http, Response
from penstock.errors import Fatal, Rejected, StepError, Transient
from penstock.redaction import conceal, release
from penstock.setting import ConfigError, Secret

_MARGIN = 60.0
_USUAL_LIFE = 3_600.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What opens an account; the secrets are read anew for every exchange."""

    client_id: str
    client_secret: Secret
    refresh_token: Secret


class Lwa:
    """Access tokens of one refresh token, asked for at `path` of the login service."""

    def __init__(self, credentials: Credentials, http: Http, clock: Clock, path: str) -> None:
        self.credentials = credentials
        self._http = http
        self._clock = clock
        self._path = path
        self._token: str | None = None
        self._expires = 0.0
        self._former: str | None = None
        self._exchange: asyncio.Task[str] | None = None

    async def token(self, *, instead_of: str | None = None) -> str:
        """A token that is good for a while; never `instead_of`, which a provider refused.

        Raises Fatal when the credentials are wrong or revoked, Throttled or Transient when there is no answer now.
        """
        if self._token and self._token != instead_of and self._clock.elapsed() < self._expires:
            return self._token
        if self._exchange is None:
            self._exchange = asyncio.create_task(self._refresh())
            self._exchange.add_done_callback(self._exchanged)
        try:
            # One caller that gives up must not take the token away from the others.
            return await asyncio.shield(self._exchange)
        except StepError as error:
            raise copy.copy(error) from error  # a step writes on the error it gets, and there are several

    def close(self) -> None:
        """Give up an exchange that is under way."""
        if self._exchange is not None:
            self._exchange.cancel()

    def _exchanged(self, task: asyncio.Task[str]) -> None:
        self._exchange = None
        if not task.cancelled():
            task.exception()  # every caller may have given up: then nobody else would look at it

    async def _refresh(self) -> str:
        form = {"grant_type": "refresh_token", "client_id": self.credentials.client_id}
        try:
            form["client_secret"] = self.credentials.client_secret.reveal()
            form["refresh_token"] = self.credentials.refresh_token.reveal()
            response = await self._http.call("POST", self._path, data=form, repeatable=True)
        except ConfigError as error:
            raise Fatal(str(error)) from error
        except Rejected as error:
            raise Fatal(f"{error}; check the client and the refresh token of {self.credentials.client_id}") from error
        token, life = _answer(response)
        conceal(token)
        if self._former is not None:
            release(self._former)
        self._former, self._token = self._token, token
        self._expires = self._clock.elapsed() + max(life - _MARGIN, life / 2)
        return token


def _answer(response: Response) -> tuple[str, float]:
    try:
        answer = response.json()
        token, life = answer["access_token"], answer.get("expires_in", _USUAL_LIFE)
    except (ValueError, KeyError, TypeError, AttributeError):
        token, life = None, 0
    usable = isinstance(token, str) and token and token.isprintable() and token.isascii()
    if not usable or isinstance(life, bool) or not isinstance(life, int | float) or not 0 < life < 10 * _USUAL_LIFE:
        raise Transient(f"POST {response.url.path}: the answer has no access token that can be used")
    return token, float(life)
