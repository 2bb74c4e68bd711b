"""Who asks the same within a second gets one answer; nobody gets another's, and who acts sees the effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from starlette.responses import Response

from penstock.api import shared
from penstock.api.shared import Shared
from penstock.model.clock import VirtualClock
from penstock.model.unit import Ref
from tests.support.web import Client, Site, site


class Question:
    """Counts how often it is asked, and answers when it is let."""

    def __init__(self, answer: Any = "yes") -> None:
        self.answer = answer
        self.asked = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def __call__(self) -> Any:
        self.asked += 1
        answer = self.answer
        await self.goes_on.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(work: Callable[[Shared, VirtualClock], Coroutine[Any, Any, Any]]) -> Any:
    clock = VirtualClock()
    return asyncio.run(work(Shared(lambda: clock), clock))


def test_the_same_question_is_asked_once_within_a_second():
    async def work(answers: Shared, clock: VirtualClock) -> list[int]:
        question, counts = Question(), []
        for seconds in (0.0, 0.9, 0.2):
            await clock_forward(clock, seconds)
            await answers.once("how", question)
            await answers.once("how", question)
            counts.append(question.asked)
        return counts

    assert run(work) == [1, 1, 2]


def test_other_questions_are_asked_for_themselves():
    async def work(answers: Shared, _: VirtualClock) -> list[str]:
        return [await answers.once(("how", who), Question(who)) for who in ("ann", "bob")]

    assert run(work) == ["ann", "bob"]


def test_those_who_ask_meanwhile_wait_for_the_answer_and_who_asked_first_may_go():
    async def work(answers: Shared, _: VirtualClock) -> tuple[list[str], int]:
        question = Question()
        question.goes_on.clear()
        asking = [asyncio.create_task(answers.once("how", question)) for _ in range(3)]
        await begun()
        asking[0].cancel()
        await begun()
        question.goes_on.set()
        return await asyncio.gather(*asking[1:]), question.asked

    assert run(work) == (["yes", "yes"], 1)


def test_who_asks_a_second_later_does_not_wait_for_the_older_answer():
    async def work(answers: Shared, clock: VirtualClock) -> list[int]:
        question, counts = Question(), []
        question.goes_on.clear()
        first = asyncio.create_task(answers.once("how", question))
        await begun()
        await clock_forward(clock, 2.0)
        second = asyncio.create_task(answers.once("how", question))
        await begun()
        counts.append(question.asked)
        question.goes_on.set()
        await asyncio.gather(first, second)
        await clock_forward(clock, 0.5)
        await answers.once("how", question)
        counts.append(question.asked)
        return counts

    assert run(work) == [2, 2]


def test_what_takes_long_is_kept_for_four_times_as_long():
    async def work(answers: Shared, clock: VirtualClock) -> list[int]:
        counts, asked = [], 0

        async def slow() -> str:
            nonlocal asked
            asked += 1
            await clock_forward(clock, 2.0)
            return "yes"

        for seconds in (0.0, 5.0, 2.0):
            await clock_forward(clock, seconds)
            await answers.once("how", slow)
            counts.append(asked)
        return counts

    assert run(work) == [1, 1, 2]


def test_an_act_ends_it_at_once_even_for_what_is_under_way():
    async def work(answers: Shared, _: VirtualClock) -> tuple[list[str], int]:
        question = Question("before")
        question.goes_on.clear()
        first = asyncio.create_task(answers.once("how", question))
        await begun()
        answers.changed()
        question.answer = "after"
        second = asyncio.create_task(answers.once("how", question))
        await begun()
        question.goes_on.set()
        found = await asyncio.gather(first, second)
        return [*found, await answers.once("how", question)], question.asked

    assert run(work) == (["before", "after", "after"], 2)


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("no"), Response("no", 503), Response("x" * 1_000_001)],
    ids=["raised", "said", "too large to keep"],
)
def test_what_is_not_worth_keeping_is_asked_again(answer: Any):
    async def work(answers: Shared, _: VirtualClock) -> tuple[int, Any]:
        question = Question(answer)
        first = await asyncio.gather(*(answers.once("how", question) for _ in range(3)), return_exceptions=True)
        assert first == [answer] * 3
        question.answer = "yes"
        return question.asked, await answers.once("how", question)

    assert run(work) == (1, "yes")


def test_it_keeps_a_bounded_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared, "_MOST", 10)

    async def work(answers: Shared, _: VirtualClock) -> tuple[int, int]:
        for number in range(100):
            await answers.once(number, Question())
        newest = Question()
        await answers.once(99, newest)
        return len(answers._asked), newest.asked

    kept, asked = run(work)
    assert kept <= 10
    assert asked == 0


async def clock_forward(clock: VirtualClock, seconds: float) -> None:
    clock.advance(seconds)
    await begun()


async def begun() -> None:
    """Let everything go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose answers last for as long as nobody acts."""
    with site(f"sqlite:///{tmp_path_factory.mktemp('shared')}/ledger.db", fresh=3_600.0) as made:
        yield made


@pytest.mark.parametrize("path", ["/api/v1/units/order/acme/5", "/units/order/acme/5"])
def test_who_acts_sees_the_effect_of_that_and_of_all_else(sharing: Site, path: str):
    browser = sharing.browser()
    before = browser.get(path)
    wanted = {"units": ["order:acme/5"], "reason": f"found at {path}"}
    sharing.ledger.park([Ref("order", "acme/5")], who="w", reason="behind the desk")
    assert browser.get(path).body == before.body
    seen = browser.post("/api/v1/units/unpark/preview", wanted).json
    assert "behind the desk" in browser.get(path).text
    done = browser.post("/api/v1/units/unpark/apply", wanted | {"digest": seen["digest"]})
    assert done.status == 200, done.text
    assert f"found at {path}" in browser.get(path).text


def test_people_do_not_share_and_health_is_always_asked(sharing: Site):
    admin = sharing.browser()
    preview = {"name": "ann", "role": "viewer"}
    digest = admin.post("/api/v1/token/create/preview", preview).json["digest"]
    token = admin.post("/api/v1/token/create/apply", preview | {"digest": digest, "reason": "x"}).json["secret"]
    viewer = Client(admin.app, headers={**admin.headers, "Authorization": f"Bearer {token}"})
    mine, theirs = admin.get("/units/order/acme/1").text, viewer.get("/units/order/acme/1").text
    assert "this needs the role operator" in theirs
    assert "this needs the role operator" not in mine
    assert admin.get("/api/v1/token").status == 200
    assert viewer.get("/api/v1/token").status == 403
    assert admin.get("/healthz").text == "alive\n"
