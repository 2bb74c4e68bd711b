"""Answers that were written down when they were given, and the same questions asked later of those moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import msgspec

from penstock.operations.declare import Lines


class Question(Protocol):
    """A reading with all of its parameters but the moment; None is now."""

    def __call__(self, *, at: datetime | None) -> Any: ...


@dataclass
class Record:
    """What may be unknown afterwards is None, but for the fields that are `never`.

    Of those that are `begun`, as much is known as they begin with.
    """

    questions: Mapping[str, Question]
    never: frozenset[str]
    begun: frozenset[str] = frozenset()
    answers: list[tuple[datetime, str, Any]] = field(default_factory=list)
    #: The fields that were asked for later and not known any more, and those that were.
    unknown: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)

    def write(self, now: datetime) -> None:
        """All answers as they are now."""
        self.answers += [(now, name, plain(ask, None)) for name, ask in self.questions.items()]

    def differences(self) -> list[str]:
        """Where an answer of the past is another one, or lacks what it must know."""
        found = []
        for moment, name, told in self.answers:
            asked = plain(self.questions[name], moment)
            found += [f"{name} {moment}: {one}" for one in self._differ(name, told, asked)]
        return found

    def _differ(self, path: str, told: Any, asked: Any) -> Iterator[str]:
        name = path.rpartition(".")[2]
        if isinstance(told, dict) and isinstance(asked, dict) and told.keys() == asked.keys():
            for key, value in told.items():
                yield from self._differ(f"{path}.{key}", value, asked[key])
        elif isinstance(told, list) and isinstance(asked, list) and len(told) == len(asked):
            for one, other in zip(told, asked, strict=True):
                yield from self._differ(path, one, other)
        elif asked is None and told is not None:
            self.unknown.add(path)
            if name in self.never:
                yield f"{path} was {told!r} and is not known"
        elif told != asked and not (name in self.begun and str(told).startswith(str(asked))):
            yield f"{path} was {told!r} and is said to have been {asked!r}"
        elif told is not None:
            self.known.add(path)


def plain(ask: Question, moment: datetime | None) -> Any:
    """An answer, or its refusal, as data; the note below a list may say more of the past, or less."""
    try:
        answer = ask(at=moment)
    except Exception as error:  # noqa: BLE001 - a refusal is an answer
        return f"{type(error).__name__}: {error}"
    if isinstance(answer, Lines):
        return list(answer.lines)
    made = msgspec.to_builtins(answer)
    made.pop("note", None)
    return made
