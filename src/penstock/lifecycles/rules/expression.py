r"""Conditions on items, in a small language of our own: `vendor = "Acme" and price >= 100 and not tag "sale"`.

    condition  = all { "or" all }
    all        = one { "and" one }
    one        = "not" one | "(" condition ")" | test
    test       = column ("=" | "!=" | "<" | "<=" | ">" | ">=") value
               | column ["not"] "like" text                      # * is any text, ? any one character
               | column ["not"] "in" "(" value { "," value } ")"
               | column "is" ["not"] "missing"
               | "tag" text                                      # one of its tags is this one
    value      = text | number                                   # "…" or '…' with \ before a quote; 100, 19.99, -5

Nothing is ever run as a program: a condition is parsed into data, and the data is made into a predicate once
(`predicate.py`). Letter case matters in `sku` and `product` only. Amounts are in the rule's currency, `margin` is in
percent of the price. What is missing equals nothing, and is neither above nor below anything; `!=` is the reverse of
`=`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal, NoReturn, TypeAlias

import msgspec

from penstock.lifecycles.rules.money import write_decimal
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.model.near import near

TEXTS = ("sku", "title", "vendor", "product", "tag")
AMOUNTS = ("price", "compare_at", "cost", "reference")
COLUMNS = (*TEXTS, *AMOUNTS, "margin")
EXACT = frozenset({"sku", "product"})
"""The columns in which letter case matters."""
LONGEST = 4_000
DEEPEST = 32
_MOST_DIGITS = 15
_MOST_DECIMALS = 6
_SHOWN = 40

Operator: TypeAlias = Literal["=", "<", "<=", ">", ">=", "like", "in", "missing"]
Value: TypeAlias = str | Decimal
_WORDS = ("and", "or", "not", "like", "in", "is", "missing")
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>-?[0-9]+(?:\.[0-9]+)?(?![\w.]))
    |(?P<word>[^\W\d]\w*)
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<symbol><=|>=|!=|[=<>(),])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class BadExpression(UsageError):
    """A condition that cannot be read. `position` counts characters from 0; the message counts from 1."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"at character {position + 1}: {message}")
        self.position = position


class Check(msgspec.Struct, frozen=True):
    """A column compared with values; `position` is where the first of them stands."""

    column: str
    operator: Operator
    values: tuple[Value, ...] = ()
    position: int = 0


class Not(msgspec.Struct, frozen=True):
    """The reverse."""

    part: Node


class And(msgspec.Struct, frozen=True):
    """All of two or more."""

    parts: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True):
    """At least one of two or more."""

    parts: tuple[Node, ...]


Node: TypeAlias = Check | Not | And | Or


def parse(given: str) -> Node:
    """A condition as data. Raises BadExpression with the position of what is wrong."""
    if len(given) > LONGEST:
        raise BadExpression(f"a condition has at most {LONGEST:,} characters, and this one has {len(given):,}", LONGEST)
    parser = _Parser(_tokens(given))
    found = parser.condition(0)
    parser.end()
    return found


def canonical(node: Node) -> str:
    """The condition as text again: the same for conditions that differ in spaces, quotes and letter case of words."""
    if isinstance(node, Not):
        return f"not {_bracketed(node.part)}"
    if isinstance(node, And | Or):
        return (" and " if isinstance(node, And) else " or ").join(map(_bracketed, node.parts))
    if node.operator == "missing":
        return f"{node.column} is missing"
    values = [_written(value) for value in node.values]
    return f"{node.column} {node.operator} {'(' + ', '.join(values) + ')' if node.operator == 'in' else values[0]}"


def _bracketed(node: Node) -> str:
    return f"({canonical(node)})" if isinstance(node, And | Or) else canonical(node)


def _written(value: Value) -> str:
    if isinstance(value, Decimal):
        return write_decimal(value)
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Token(msgspec.Struct, frozen=True):
    kind: str
    text: str
    position: int

    def __str__(self) -> str:
        return f'"{inert(self.text[:_SHOWN])}"' if self.kind != "end" else "the end"


def _tokens(given: str) -> list[_Token]:
    found, position = [], 0
    while position < len(given):
        match = _TOKEN.match(given, position)
        if match is None:
            raise BadExpression(_unreadable(given, position), position)
        if match.lastgroup != "space":
            found.append(_Token(match.lastgroup or "", match[0], position))
        position = match.end()
    return [*found, _Token("end", "", len(given))]


def _unreadable(given: str, position: int) -> str:
    character = given[position]
    if character in "\"'":
        return "this quote is never closed"
    if character.isdigit() or character == "-":
        return "this is not a number; write it as 100 or 19.99"
    return f'"{inert(character)}" means nothing here; text stands in quotes'


class _Parser:
    """One pass over the tokens, by descent; how deep is bounded."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def condition(self, depth: int) -> Node:
        parts = [self._all(depth)]
        while self._take("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def end(self) -> None:
        if self._next.kind != "end":
            self._wrong(f'expected "and", "or" or the end, and not {self._next}{_meant(self._next, ("and", "or"))}')

    def _all(self, depth: int) -> Node:
        parts = [self._one(depth)]
        while self._take("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self, depth: int) -> Node:
        if depth >= DEEPEST:
            self._wrong(f'brackets and "not" go at most {DEEPEST} deep')
        if self._take("not"):
            return Not(self._one(depth + 1))
        if self._take("("):
            found = self.condition(depth + 1)
            self._expect(")")
            return found
        return self._test()

    def _test(self) -> Node:
        column = self._column()
        if column == "tag" and self._next.kind == "text":
            return self._compared(column, "=")
        if self._take("is"):
            reverse = self._take("not")
            self._expect("missing")
            return _perhaps_not(Check(column, "missing"), reverse=reverse)
        reverse = self._take("not")
        if self._take("like"):
            return _perhaps_not(self._like(column), reverse=reverse)
        if self._take("in"):
            return _perhaps_not(self._in(column), reverse=reverse)
        if reverse:
            self._wrong(f'after "not" here comes "like" or "in", and not {self._next}')
        return self._comparison(column)

    def _column(self) -> str:
        token = self._next
        name = token.text.lower()
        if token.kind != "word" or name in _WORDS:
            self._wrong(f"expected a column, and not {token}; the columns are {', '.join(COLUMNS)}")
        if name not in COLUMNS:
            meant = _meant(token, COLUMNS) or f"; the columns are {', '.join(COLUMNS)}"
            self._wrong(f"{token} is not a column{meant}")
        self._place += 1
        return name

    def _comparison(self, column: str) -> Node:
        token = self._next
        if token.text not in _COMPARISONS:
            allowed = ", ".join((*_COMPARISONS, "like", "in", "is missing"))
            meant = _meant(token, ("like", "in", "is", "not"))
            self._wrong(f'expected a comparison after "{column}" ({allowed}), and not {token}{meant}')
        if column in TEXTS and token.text not in ("=", "!="):
            self._wrong(f'"{column}" is text, which has no order; use =, !=, like or in')
        self._place += 1
        if token.text == "!=":
            return Not(self._compared(column, "="))
        return self._compared(column, token.text)  # type: ignore[arg-type]  # one of the comparisons

    def _compared(self, column: str, operator: Operator) -> Check:
        position = self._next.position
        return Check(column, operator, (self._value(column),), position)

    def _like(self, column: str) -> Check:
        if column not in TEXTS:
            self._wrong(f'"{column}" is a number; "like" is for text')
        return self._compared(column, "like")

    def _in(self, column: str) -> Check:
        self._expect("(")
        position, values = self._next.position, [self._value(column)]
        while self._take(","):
            values.append(self._value(column))
        self._expect(")")
        return Check(column, "in", tuple(values), position)

    def _value(self, column: str) -> Value:
        token = self._next
        if column in TEXTS:
            if token.kind != "text":
                self._wrong(f'"{column}" is compared with text in quotes, and not with {token}')
            self._place += 1
            return _ESCAPED.sub(r"\1", token.text[1:-1])
        if token.kind != "number":
            self._wrong(f'"{column}" is compared with a number, such as 19.99, and not with {token}')
        whole, _, fraction = token.text.lstrip("-").partition(".")
        if len(whole) > _MOST_DIGITS or len(fraction) > _MOST_DECIMALS:
            self._wrong(f"a number has at most {_MOST_DIGITS} digits before the point and {_MOST_DECIMALS} behind it")
        if column != "margin" and token.text.startswith("-"):
            self._wrong(f'"{column}" is an amount, which is never below zero')
        self._place += 1
        return Decimal(token.text)

    def _take(self, wanted: str) -> bool:
        token = self._next
        if token.kind not in ("word", "symbol") or token.text.lower() != wanted:
            return False
        self._place += 1
        return True

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            self._wrong(f'expected "{wanted}", and not {self._next}{_meant(self._next, (wanted,))}')

    def _wrong(self, message: str) -> NoReturn:
        raise BadExpression(message, self._next.position)


def _perhaps_not(check: Check, *, reverse: bool) -> Node:
    return Not(check) if reverse else check


def _meant(token: _Token, known: tuple[str, ...]) -> str:
    close = near(token.text.lower(), known) if token.kind == "word" else []
    return f'; did you mean "{close[0]}"?' if close else ""
