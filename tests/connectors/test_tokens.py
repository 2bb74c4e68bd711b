"""Tokens of a login: kept out of every text while they are good, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.connectors.tokens import Tokens
from penstock.model.clock import VirtualClock
from penstock.settings.redaction import MARK, redact

LIFE = 3_600.0


def holder(clock: VirtualClock, *tokens: str) -> Tokens:
    """A login that gives these, one after the other."""
    left: Iterator[str] = iter(tokens)

    async def login() -> tuple[str, float]:
        return next(left), LIFE

    return Tokens(login, clock)


def shown(*tokens: str) -> list[bool]:
    return [redact(f"Bearer {one}") != f"Bearer {MARK}" for one in tokens]


def test_a_token_is_looked_for_until_the_one_after_the_next():
    async def main() -> None:
        clock = VirtualClock()
        login = holder(clock, "first-token", "second-token", "third-token")
        assert await login.token() == "first-token"
        clock.advance(LIFE)
        assert await login.token() == "second-token"
        assert shown("first-token", "second-token") == [False, False]
        clock.advance(LIFE)
        assert await login.token() == "third-token"
        assert shown("first-token", "second-token", "third-token") == [True, False, False]

    asyncio.run(main())


def test_a_token_that_comes_again_stays_a_secret():
    async def main() -> None:
        clock = VirtualClock()
        login = holder(clock, *["the-same-token"] * 4)
        for _ in range(4):
            assert await login.token() == "the-same-token"
            assert shown("the-same-token") == [False]
            clock.advance(LIFE)

    asyncio.run(main())


def test_the_token_of_a_closed_login_is_looked_for_while_it_is_good():
    async def main() -> None:
        clock = VirtualClock()
        closed = holder(clock, "token-of-one", "another-of-one")
        await closed.token()
        clock.advance(LIFE)
        await closed.token()
        closed.close()
        assert shown("token-of-one", "another-of-one") == [True, False]
        other = holder(clock, "token-of-two", "more-of-two")
        await other.token()
        assert shown("another-of-one", "token-of-two") == [False, False]
        clock.advance(LIFE)
        await other.token()
        assert shown("another-of-one", "token-of-two", "more-of-two") == [True, False, False]

    asyncio.run(main())
