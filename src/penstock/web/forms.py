"""The parameters of a declaration as fields of a form, and a form as parameters."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from penstock.model.inert import inert
from penstock.operations.conversion import offered
from penstock.operations.fields import FieldInfo, Parameters, fields_of

if TYPE_CHECKING:
    from penstock.api.routes import Place

_CURSOR = "after"
"""Where a page goes on: its button knows, and nobody types it."""


_WIDE = 28


@dataclass(frozen=True, slots=True)
class Field:
    """One field: how it is typed, what it says, and what stands in it."""

    name: str
    says: str
    kind: str
    required: bool
    value: str
    example: str
    choices: Sequence[str] = ()

    @property
    def wide(self) -> bool:
        """Whether what stands in it, or may, is wider than others."""
        return self.kind == "text" and max(len(self.value), len(self.example)) > _WIDE

    @property
    def asked(self) -> bool:
        """Whether it must be filled in, or is."""
        return self.required or bool(self.value)


def form_fields(
    parameters: type[Parameters], given: Mapping[str, Sequence[str]], without: Collection[str] = ()
) -> list[Field]:
    """The fields of a form, with what was typed before."""
    left = {_CURSOR, *without}
    there = [one for one in offered(parameters) if not one.extra("stdin") and one.name not in left]
    return [_field(one, given.get(one.name, ())) for one in there]


def _field(one: FieldInfo, given: Sequence[str]) -> Field:
    choices = _choices(one)
    kind = "many" if one.many is not None else "choice" if choices else "flag" if one.choices == (bool,) else "text"
    example = str((one.meta.examples or [""])[0])
    return Field(one.name, one.says, kind, one.required, "\n".join(map(inert, given)), example, choices)


def _choices(one: FieldInfo) -> list[str]:
    found: list[str] = []
    for kind in one.choices:
        if isinstance(kind, type) and issubclass(kind, Enum):
            found += [str(member.value) for member in kind]
        elif get_origin(kind) is Literal:
            found += map(str, get_args(kind))
    return found


def pairs_of(parameters: type[Parameters], given: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """A form's texts as a query string would have them: empty fields are left out, lines of a list are items."""
    many = {one.name for one in fields_of(parameters) if one.many is not None}
    return [
        (name, text.strip())
        for name, values in given.items()
        for value in values
        for text in (value.splitlines() if name in many else [value])
        if text.strip()
    ]


def grouped(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Values by name."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def command_of(place: Place, pairs: Sequence[tuple[str, str]]) -> str:
    """The same as a command."""
    kinds = {one.name: one for one in fields_of(place.declared.parameters)}
    words: list[Any] = ["penstock", *place.name.split()]
    arguments = [value for name, value in pairs if name in kinds and kinds[name].extra("argument")]
    for name, value in pairs:
        if name not in kinds or kinds[name].extra("argument"):
            continue
        option = f"--{name.replace('_', '-')}"
        words += [option] if kinds[name].choices == (bool,) else [option, value]
    return " ".join(
        shlex.quote(inert(str(word)))
        for word in [*words[: 1 + len(place.name.split())], *arguments, *words[1 + len(place.name.split()) :]]
    )
