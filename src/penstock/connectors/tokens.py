"""Access tokens that a login gives for a while: one holder for each login, whatever the login looks like.

A new token is asked for shortly before the old one expires, and once however many callers need it; a failure is told to
all that waited for it. Tokens are kept out of every text.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable

from penstock.model import tenure
from penstock.model.clock import Clock
from penstock.model.errors import StepError, Transient
from penstock.settings.redaction import conceal, release

MARGIN = 60.0
"""How many seconds before its end a token is renewed; a short one after half of its life."""
LONGEST = 8_192
"""A longer token would not pass as a header, and takes seconds to be looked for in texts."""

Login = Callable[[], Awaitable[tuple[str, float]]]
"""Makes the exchange: a token, and for how many seconds it is good. Raises a StepError."""


_left: list[tuple[Clock, float, str]] = []
"""The last tokens of logins that were closed, and when each is no longer good, by that clock."""


def _release_what_is_over() -> None:
    for one in [one for one in _left if one[0].elapsed() >= one[1]]:
        _left.remove(one)
        release(one[2])


class Tokens:
    """The tokens of one login."""

    def __init__(self, login: Login, clock: Clock) -> None:
        self._login = login
        self._clock = clock
        self._token: str | None = None
        self._expires = 0.0
        self._over = 0.0
        self._former: str | None = None
        self._exchange: asyncio.Task[str] | None = None

    async def token(self, *, instead_of: str | None = None) -> str:
        """A token that is good for a while; never `instead_of`, which was refused. Raises what the login raises."""
        if self._token and self._token != instead_of and self._clock.elapsed() < self._expires:
            return self._token
        if self._exchange is None:
            self._exchange = asyncio.create_task(self._renew(), context=tenure.apart())  # for others too
            self._exchange.add_done_callback(self._exchanged)
        try:
            # One caller that gives up must not take the token away from the others.
            return await asyncio.shield(self._exchange)
        except StepError as error:
            raise copy.copy(error) from error  # a step writes on the error it gets, and there are several

    def close(self) -> None:
        """Give up an exchange that is under way. A token that is good for a while stays out of every text meanwhile."""
        if self._exchange is not None:
            self._exchange.cancel()
        if self._former is not None:
            release(self._former)
        if self._token is not None:
            _left.append((self._clock, self._over, self._token))
        self._former = self._token = None

    def _exchanged(self, task: asyncio.Task[str]) -> None:
        self._exchange = None
        if not task.cancelled():
            task.exception()  # every caller may have given up: then nobody else would look at it

    async def _renew(self) -> str:
        token, life = await self._login()
        if len(token) > LONGEST:
            raise Transient(f"the login gave a token of {len(token):,} characters; {LONGEST:,} is the most")
        _release_what_is_over()
        conceal(token)
        if self._former is not None:
            release(self._former)
        self._former, self._token = self._token, token
        self._over = self._clock.elapsed() + life
        self._expires = self._over - min(MARGIN, life / 2)
        return token
