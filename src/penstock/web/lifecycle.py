"""The page of a lifecycle: its pictures, how its machines stand, its lists, and what can be done."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.api.problems import Problem
from penstock.api.routes import places, words_of
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.operations.declare import Page, Reading
from penstock.web.answers import Answers, Block
from penstock.web.cards import Cards
from penstock.web.pictures import Painter, parameters_at
from penstock.web.timebar import bar_of

if TYPE_CHECKING:
    from penstock.api.access import Person
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.web.declared import Declared
    from penstock.web.frame import Frame
    from penstock.web.overview import Overview

_ROWS = 10


class LifecyclePage:
    """The page `/lifecycles/NAME`."""

    def __init__(self, frame: Frame, overview: Overview, declared: Declared) -> None:
        self._frame = frame
        self._overview = overview
        self._declared = declared
        self._cards = Cards(frame)

    async def show(self, request: Request) -> Response:
        person = await self._frame.allow(request)
        name = request.path_params["name"]
        found = next((one for one in self._frame.desk.program.app.lifecycles if one.name == name), None)
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"no lifecycle is called {inert(name)[:50]!r}")
        view = await self._frame.seen(request, self._view, person, found, self._frame.at(request))
        return await self._frame.show(request, "lifecycle", name, view)

    def _view(self, person: Person, lifecycle: AnyLifecycle, at: datetime | None) -> dict[str, Any]:
        app = self._frame.desk.program.app
        standing = self._overview.standing(self._frame.desk.ask(app.lifecycles[0], who=person.name), at)
        painter = Painter(self._frame, standing.now, at)
        pictures = [
            (one.says, self._link(lifecycle, one.reading, at), drawn)
            for one in lifecycle.pictures
            if (drawn := painter.ask(lifecycle, one, person.name, wide=True)) is not None
        ]
        return {
            "name": lifecycle.name,
            "says": lifecycle.says,
            "follows": " ".join(one.name for one in lifecycle.machines),
            "bar": bar_of(standing.hours, standing.now, at, {one.name for one in lifecycle.machines}),
            "stacks": [self._cards.stack(machine, standing) for machine in lifecycle.machines],
            "pictures": pictures,
            "lists": [block for one in lifecycle.front for block in self._list(lifecycle, one, person, at)],
            "readings": [
                {"name": one.name, "says": one.says, "link": self._link(lifecycle, one, at)}
                for one in self._readings(lifecycle, person)
            ],
            "operations": self._declared.operations(lifecycle, person, at=at),
        }  # fmt: skip

    def _readings(self, lifecycle: AnyLifecycle, person: Person) -> list[Reading[Any]]:
        """What can be asked of it; what has two names is there once."""
        found: dict[Any, Reading[Any]] = {}
        for place in places(self._frame.desk.program.app):
            one = place.declared
            if place.lifecycle is lifecycle and isinstance(one, Reading) and person.may(one.role):
                found.setdefault(one.function, one)
        return list(found.values())

    def _link(self, lifecycle: AnyLifecycle, reading: Any, at: datetime | None) -> str:
        return self._frame.link("read", *words_of(lifecycle, reading), at=at)

    def _list(
        self, lifecycle: AnyLifecycle, reading: Reading[Any], person: Person, at: datetime | None
    ) -> list[tuple[str, str, Block]]:
        """The first rows of a list; what cannot be asked, or knows no past, is left out."""
        wanted = parameters_at(reading, at, _ROWS)
        if wanted is None:
            return []
        try:
            answer = reading(self._frame.desk.ask(lifecycle, who=person.name), wanted)
        except UsageError as error:
            answer = Page(rows=[], note=str(error))
        if isinstance(answer, Page):
            answer = Page(rows=list(answer.rows)[:_ROWS], note=answer.note)
        answers = Answers(self._frame, self._frame.desk.clock.now(), at, lifecycle)
        return [(reading.says, self._link(lifecycle, reading, at), block) for block in answers.blocks(answer)]
