"""Pages of the declarations: every reading can be asked, every operation can be shown and then done."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from penstock.api.problems import Problem
from penstock.api.routes import Acting, Place, places
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.operations.conversion import BadParameters, from_texts
from penstock.operations.declare import Lines, Operation, Page, Reading
from penstock.operations.fields import fields_of
from penstock.web.answers import Answers, Table
from penstock.web.forms import command_of, form_fields, form_of, grouped, pairs_of

if TYPE_CHECKING:
    from penstock.api.access import Person
    from penstock.operations.carry import Done, Preview
    from penstock.web.frame import Frame

_MOST_LINES = 200
_OWN = ("csrf", "act", "digest", "reason", "at")


class Declared:
    """The pages `/read/…` and `/do/…`."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._desk = frame.desk

    def place(self, path: str, kind: type[Reading[Any] | Operation[Any]]) -> Place:
        """The declaration at an address. Raises Problem where there is none."""
        for place in places(self._desk.program.app):
            if place.path == f"/{path}" and isinstance(place.declared, kind):
                return place
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is nothing at {inert(path)[:80]!r}; the menu leads to what there is"
        )

    async def read(self, request: Request) -> Response:
        """A reading: its parameters as a form, and its answer as tables."""
        place = self.place(request.path_params["path"], Reading)
        person = await self._frame.allow(request, place.declared.role)
        given = grouped(request.query_params.multi_items())
        parameters = place.declared.parameters
        pairs = [pair for pair in pairs_of(parameters, given) if pair[0] not in _OWN or _has(parameters, pair[0])]
        fields = form_fields(parameters, given)
        view: dict[str, Any] = {
            "name": place.name,
            "says": place.declared.says,
            "fields": fields,
            "blocks": [],
            "next": None,
            "problem": "",
            "command": command_of(place, pairs),
            "operations": self.operations(place.lifecycle.name, person, place.declared.path[:-1]),
        }
        if pairs or not any(one.required for one in fields):
            try:
                answer = await self._desk.read(self._answer, place, person, from_texts(parameters, pairs))
                view |= await self._desk.read(self._shown, answer, request, pairs)
            except UsageError as error:
                view["problem"] = inert(str(error))
        return await self._frame.show(request, "reading", _here(place), view)

    def _answer(self, place: Place, person: Person, parameters: Any) -> Any:
        return place.declared(self._desk.ask(place.lifecycle, who=person.name), parameters)

    def _shown(self, answer: Any, request: Request, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        answers = Answers(self._frame, self._desk.clock.now(), self._frame.at(request))
        if isinstance(answer, Lines):
            lines = [line for line, _ in zip(iter(answer.lines), range(_MOST_LINES), strict=False)]
            return {"blocks": [Table("", [], [], inert("\n".join(lines)))]}
        found: dict[str, Any] = {"blocks": answers.blocks(answer)}
        if isinstance(answer, Page) and answer.next is not None:
            kept = [pair for pair in pairs if pair[0] != "after"]
            found["next"] = f"?{urlencode([*kept, ('after', answer.next)])}"
        return found

    def operations(self, lifecycle: str, person: Person, below: tuple[str, ...] = ()) -> list[dict[str, str]]:
        """What can be done there; what this person may not do says why."""
        found = []
        for place in places(self._desk.program.app):
            declared = place.declared
            if place.lifecycle.name != lifecycle or not isinstance(declared, Operation):
                continue
            if declared.path[: len(below)] != below or (lifecycle == "kernel" and not below):
                continue
            why = "" if person.may(declared.role) else f"this needs the role {declared.role}; yours is {person.role}"
            link = self._frame.link("do", *place.path.strip("/").split("/"))
            found.append(
                {"name": " ".join(declared.path[len(below) :]), "says": declared.says, "link": link, "why": why}
            )
        return found

    async def ask(self, request: Request) -> Response:
        """An operation: its parameters as a form."""
        place = self.place(request.path_params["path"], Operation)
        person = await self._frame.allow(request)
        given = grouped(request.query_params.multi_items())
        return await self._page(request, place, person, given, {})

    async def act(self, request: Request) -> Response:
        """What it would do, or doing it: the form says which. Only what was shown is done."""
        place = self.place(request.path_params["path"], Operation)
        given = await form_of(request)
        person = await self._frame.allow(request, place.declared.role, form=_one(given, "csrf"))
        acting = Acting(self._desk, self._frame.access, place)
        parameters, reason = place.declared.parameters, _one(given, "reason").strip()
        assert isinstance(place.declared, Operation)  # noqa: S101 - asked for as one
        try:
            if place.declared.wants_reason and not reason:
                raise BadParameters({"reason": "is missing: the history keeps why something was done by hand"})
            own = {name: values for name, values in given.items() if name not in _OWN or _has(parameters, name)}
            wanted = from_texts(parameters, pairs_of(parameters, own))
            if _one(given, "act") != "apply":
                _, planned = await self._desk.act(acting.planned, person, wanted, reason or "preview")
                return await self._page(request, place, person, given, {"preview": self._previewed(planned.preview)})
            done = await self._desk.act(self._apply, acting, person, (wanted, reason, _one(given, "digest")))
        except UsageError as error:
            return await self._page(request, place, person, given, {"problem": inert(str(error))}, 422)
        return await self._page(request, place, person, {}, {"done": self._done(done)})

    def _apply(self, acting: Acting, person: Person, wanted: tuple[Any, str, str]) -> Done:
        parameters, reason, digest = wanted
        return acting.carried(*acting.agreed(person, parameters, reason, digest))

    async def _page(  # noqa: PLR0917 - all that the page shows
        self, request: Request, place: Place, person: Person, given: Any, more: dict[str, Any], status: int = 200
    ) -> Response:
        declared = place.declared
        assert isinstance(declared, Operation)  # noqa: S101 - the callers' choice
        past = self._frame.at(request) is not None
        why_not = "nothing can be done in the past; go back to now" if past else ""
        if not person.may(declared.role):
            why_not = f"this needs the role {declared.role}; yours is {person.role}"
        view = {
            "name": place.name,
            "says": declared.says,
            "fields": form_fields(declared.parameters, given),
            "reason": inert(_one(given, "reason")),
            "wants_reason": declared.wants_reason,
            "why_not": why_not,
            "preview": None,
            "done": None,
            "problem": "",
            "command": command_of(place, pairs_of(declared.parameters, given)),
            **more,
        }
        return await self._frame.show(request, "operation", _here(place), view, status)

    def _previewed(self, preview: Preview) -> dict[str, Any]:
        answers = Answers(self._frame, self._desk.clock.now())
        sample = [[(answers.reference(ref), "")] for ref in preview.sample]
        skipped = [[(answers.plain(why), ""), (answers.plain(f"{n:,}"), "num")] for why, n in preview.skipped.items()]
        blocks = [Table("For example", [("unit", "")], sample)] if sample else []
        if skipped:
            blocks.append(Table("Left as they are", [("why", ""), ("how many", "num")], skipped))
        return {
            "says": inert(preview.says),
            "count": preview.count,
            "digest": preview.digest,
            "warnings": list(map(inert, preview.warnings)),
            "blocks": blocks,
        }

    def _done(self, done: Done) -> dict[str, Any]:
        follows = done.action or done.follows
        lines = [f"{inert(why)}: {count:,} left as they are" for why, count in done.skipped.items()]
        if done.secret is not None:
            lines.append(f"{done.secret} (shown once)")
        link = "" if follows is None else self._frame.unit_link(follows)
        return {"says": inert(done.says), "follows": follows, "link": link, "lines": lines}


def _has(parameters: Any, name: str) -> bool:
    return any(one.name == name for one in fields_of(parameters))


def _one(given: dict[str, list[str]], name: str) -> str:
    return next(iter(given.get(name, ())), "")


def _here(place: Place) -> str:
    return place.lifecycle.name if place.lifecycle.name != "kernel" else place.declared.path[0].capitalize()
