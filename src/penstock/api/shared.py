"""One answer for all who ask the same within a second.

Whoever asks what another has just asked gets that answer, or waits for it. Who asks is a part of the question, so that
nobody sees what another may see. Whatever is done through this process ends it at once: who acts sees the effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from penstock.api.compressed import compressed, takes_gzip
from penstock.model.clock import Clock

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.api.access import Access
    from penstock.api.desk import Desk

FRESH_SECONDS = 1.0
_COSTS = 4
"""What takes long to answer is kept for so many times as long: one question takes a quarter of a thread at most."""
_MOST = 1_000
_MOST_BYTES = 32_000_000
_LARGEST = 1_000_000
Endpoint = Callable[["Request"], Awaitable[Response]]


@dataclass(slots=True)
class _Asked:
    """A question: when it was asked, and its answer, which may still be under way. `ends` and `size` come with it."""

    begun: float
    acts: int
    answer: asyncio.Task[Any]
    ends: float
    size: int = 0


class Shared:
    """Answers by their questions. `fresh` is how many seconds an answer serves others; 0: nothing is shared."""

    def __init__(self, clock: Callable[[], Clock], fresh: float = FRESH_SECONDS) -> None:
        self._clock = clock
        self._fresh = fresh
        self._asked: dict[Hashable, _Asked] = {}
        self._acts = 0

    def changed(self) -> None:
        """Something was done: what was asked before is not the answer to what is asked from now on."""
        self._acts += 1

    async def once(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question, asked at most once in a while. What goes wrong is told to those who wait for it.

        An answer is kept if it is bytes of a page, or anything that is no Response. It is nobody's to change.
        """
        if not self._fresh:
            return await ask()
        now = self._clock().elapsed()
        found = self._asked.get(question)
        if found is None or not self._serves(found, now):
            self._make_room(now)
            # A task of its own: who asked first may go away, and others wait for the answer.
            found = _Asked(now, self._acts, asyncio.ensure_future(_awaited(ask)), now + self._fresh)
            self._asked[question] = found
            found.answer.add_done_callback(lambda _: self._answered(question, found))
        return await asyncio.shield(found.answer)

    def _serves(self, one: _Asked, now: float) -> bool:
        ours = one.answer.done() or one.answer.get_loop() is asyncio.get_running_loop()
        return ours and one.acts == self._acts and one.begun <= now < one.ends

    def _answered(self, question: Hashable, one: _Asked) -> None:
        """Keep it for as long as it serves, if it is worth keeping."""
        if one.answer.cancelled() or one.answer.exception() is not None or not _lasting(one.answer.result()):
            if self._asked.get(question) is one:
                del self._asked[question]
            return
        answer = one.answer.result()
        one.size = len(answer.body) if isinstance(answer, Response) else _LARGEST // 10
        one.ends = one.begun + max(self._fresh, _COSTS * (self._clock().elapsed() - one.begun))

    def _make_room(self, now: float) -> None:
        """What no longer serves goes; of what does, the oldest."""
        if len(self._asked) < _MOST and sum(one.size for one in self._asked.values()) < _MOST_BYTES:
            return
        self._asked = {question: one for question, one in self._asked.items() if self._serves(one, now)}
        for question in list(self._asked)[: len(self._asked) // 2]:
            del self._asked[question]


async def _awaited(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()


def _lasting(answer: Any) -> bool:
    if not isinstance(answer, Response):
        return True
    plain = not isinstance(answer, StreamingResponse) and "set-cookie" not in answer.headers
    return plain and answer.status_code == HTTPStatus.OK and len(answer.body) <= _LARGEST


def share(desk: Desk, access: Access, endpoint: Endpoint) -> Endpoint:
    """An endpoint whose answers are compressed, and shared by those who ask the same as the same person."""
    endpoint = compressed(endpoint)

    @wraps(endpoint)
    async def answered(request: Request) -> Response:
        person = await access.person(request)
        if person is None or request.method != "GET":
            return await endpoint(request)
        scope, version = request.scope, desk.program.configuration.version
        address = (scope["scheme"], scope["root_path"], scope["path"], scope["query_string"])
        answer: Response = await desk.shared.once(
            (address, takes_gzip(request), version, person), lambda: endpoint(request)
        )
        return answer

    return answered
