"""The little GraphQL that simulators understand: one operation, with variables, arguments and selections.

Neither directives nor aliases; of fragments only those in place, `...on Type{}`, whose fields count as the parent's. A
document is read once; what it asks for depends on the variables alone.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""[\s,]*(?:(?P<name>[_A-Za-z][_0-9A-Za-z]*)|(?P<variable>\$[_A-Za-z]\w*)|(?P<number>-?[0-9]+(?:\.[0-9]+)?)"""
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<mark>\.\.\.|[{}()\[\]:!=])|(?P<end>\Z))"""
)
_WORDS = {"true": True, "false": False, "null": None}


class BadDocument(Exception):
    """The document cannot be read, or asks for what does not exist; in the words of a GraphQL server."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A place in an argument that a variable fills."""

    name: str


@dataclass(slots=True)
class Field:
    """One selected field: its arguments, and what is selected in it; None where nothing can be."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Field] | None = None

    def argument(self, name: str, variables: Mapping[str, Any]) -> Any:
        """The value of an argument; None where it is not given."""
        return _filled(self.arguments.get(name), variables)


def parse(document: str) -> dict[str, Field]:
    """What a query selects. Raises BadDocument. The answer is shared: do not change it."""
    kind, selected = operation(document)
    if kind != "query":
        raise BadDocument('Syntax Error: only "query" is simulated.')
    return selected


@functools.lru_cache(maxsize=256)
def operation(document: str) -> tuple[str, dict[str, Field]]:
    """`query` or `mutation`, and what it selects. Raises BadDocument. The answer is shared: do not change it."""
    reader = _Reader(document)
    kind = "query"
    if reader.kind == "name":
        kind = reader.take("name")
        if kind not in ("query", "mutation"):
            raise BadDocument('Syntax Error: only "query" and "mutation" are simulated.')
        if reader.kind == "name":
            reader.take("name")
        if reader.text == "(":
            while reader.text != ")":
                reader.next()
            reader.next()
    selected = _selection(reader)
    reader.take("end")
    return kind, selected


def _selection(reader: _Reader) -> dict[str, Field]:
    reader.expect("{")
    found: dict[str, Field] = {}
    while reader.text != "}":
        if reader.text == "...":
            found |= _fragment(reader)
            continue
        one = Field(reader.take("name"))
        if reader.text == "(":
            reader.next()
            while reader.text != ")":
                name = reader.take("name")
                reader.expect(":")
                one.arguments[name] = _value(reader)
            reader.next()
        if reader.text == "{":
            one.fields = _selection(reader)
        found[one.name] = one
    reader.next()
    if not found:
        raise BadDocument("Syntax Error: Expected Name, found }.")
    return found


def _fragment(reader: _Reader) -> dict[str, Field]:
    reader.next()
    if reader.take("name") != "on":
        raise BadDocument('Syntax Error: Expected "on", found a name.')
    reader.take("name")
    return _selection(reader)


def _value(reader: _Reader) -> Any:
    kind, text = reader.kind, reader.text
    reader.next()
    if kind == "variable":
        return Variable(text[1:])
    if kind == "number":
        return float(text) if "." in text else int(text)
    if kind == "text":
        return json.loads(text)
    if kind == "name":
        return _WORDS.get(text, text)
    if text == "[":
        items = []
        while reader.text != "]":
            items.append(_value(reader))
        reader.next()
        return items
    if text == "{":
        table = {}
        while reader.text != "}":
            name = reader.take("name")
            reader.expect(":")
            table[name] = _value(reader)
        reader.next()
        return table
    raise BadDocument(f"Syntax Error: Unexpected {text or '<EOF>'}.")


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    if isinstance(value, Variable):
        return variables.get(value.name)
    if isinstance(value, dict):
        return {name: _filled(part, variables) for name, part in value.items()}
    return [_filled(part, variables) for part in value] if isinstance(value, list) else value


class _Reader:
    """The tokens of a document, one at a time."""

    def __init__(self, document: str) -> None:
        self._document = document
        self._position = 0
        self.kind, self.text = "", ""
        self.next()

    def next(self) -> None:
        if self.kind == "end":
            raise BadDocument("Syntax Error: Unexpected <EOF>.")
        found = _TOKEN.match(self._document, self._position)
        if found is None:
            raise BadDocument(f"Syntax Error: Unexpected character at {self._position}.")
        self._position = found.end()
        self.kind = str(found.lastgroup)
        self.text = found[self.kind]

    def take(self, kind: str) -> str:
        if self.kind != kind:
            raise BadDocument(f"Syntax Error: Expected {kind}, found {self.text or '<EOF>'}.")
        text = self.text
        if kind != "end":
            self.next()
        return text

    def expect(self, mark: str) -> None:
        if self.text != mark or self.kind != "mark":
            raise BadDocument(f"Syntax Error: Expected {mark}, found {self.text or '<EOF>'}.")
        self.next()
