"""Keeping secrets out of every text: what was revealed once is replaced wherever a text leaves the program.

`conceal` is called with each value that a reference to a secret gives away. From then on `redact` replaces it, also in
the forms that it takes inside URLs, JSON, HTML, `repr` and Basic authorisation, and where one of these is inside
another. Everything that goes to the ledger (`plain`, `readable`), the log, the HTTP connector's errors and the command
line's own messages pass through it. As long as no secret was revealed it costs one look at an empty list.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from types import TracebackType

SHORTEST = 4
"""A shorter secret is refused: it would be found in every other text, and guessed by anybody."""
MARK = "[secret]"

_PERCENT = "%(?:25){0,4}"
_SEMICOLON = f"(?:;|{_PERCENT}3[bB])"
_AMPERSAND = f"(?:&|{_PERCENT}26)(?:amp{_SEMICOLON}){{0,4}}"
_NUMBER = f"(?:#|{_PERCENT}23)"
_BACKSLASH = rf"(?:\\|{_PERCENT}5[cC])"
_ESCAPES = {"\n": "n", "\r": "r", "\t": "t"}
_INSTEAD = {" ": [r"\+", f"{_PERCENT}2[bB]"]}  # in a form
_values: dict[str, int] = {}
"""How often each was concealed and not yet released: two logins may be given the same token."""
PATTERNS: list[Pattern] = []
"""One for each value that is concealed, the longest first; never replaced, so that it may be imported by name."""
_parts: list[str] = []
"""Of each form of each value a part; a text that has none of them holds no secret. Most texts are asked no more."""


class Pattern:
    """What finds a secret in a text: first a part of it by itself, then all that the secret may look like.

    The latter takes some milliseconds to compile. Most secrets are tokens, which come every hour and are in no text.
    """

    __slots__ = ("_made", "parts", "value")

    def __init__(self, value: str) -> None:
        self.value = value
        self._made: re.Pattern[str] | None = None
        #: Of every form the longest part that is always written the same way; it may be empty, and is in every text.
        self.parts = tuple({_longest_part(form) for form in (value, *_in_base64(value))})

    def within(self, text: str) -> bool:
        """Whether the secret stands in the text."""
        return self._near(text) and self._whole().search(text) is not None

    def hide(self, text: str) -> str:
        """The text without the secret."""
        return self._whole().sub(MARK, text) if self._near(text) else text

    def _near(self, text: str) -> bool:
        return any(part in text for part in self.parts)

    def _whole(self) -> re.Pattern[str]:
        if self._made is None:
            self._made = _compiled(self.value)
        return self._made


def conceal(value: str) -> None:
    """From now on the value is replaced in every text."""
    if len(value) < SHORTEST:
        return
    _values[value] = _values.get(value, 0) + 1
    if _values[value] == 1:
        _look_for_all()


def release(value: str) -> None:
    """No longer look for a value that no longer opens anything: a token that was replaced and has expired."""
    if value not in _values:
        return
    _values[value] -= 1
    if _values[value] == 0:
        del _values[value]
        _look_for_all()


def redact(text: str) -> str:
    """The text without any secret."""
    if _suspect(text):
        for pattern in PATTERNS:
            text = pattern.hide(text)
    return text


def holds(text: str) -> bool:
    """Whether a secret stands in the text."""
    return _suspect(text) and any(pattern.within(text) for pattern in PATTERNS)


def last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For `sys.excepthook`: a bug ends the program with its traceback, in which a secret may stand as anywhere."""
    import sys
    import traceback

    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _look_for_all() -> None:
    known = {pattern.value: pattern for pattern in PATTERNS}
    longest_first = sorted(_values, key=lambda value: (-len(value), value))
    found = [known.get(value) or Pattern(value) for value in longest_first]
    # The parts first: whoever looks meanwhile must not miss what the new pattern finds.
    _parts[:] = {part for pattern in found for part in pattern.parts}
    PATTERNS[:] = found


def _suspect(text: str) -> bool:
    return any(map(text.__contains__, _parts))


def _compiled(value: str) -> re.Pattern[str]:
    """What the value looks like: its characters in whatever way each is written, and in base64."""
    forms = ["".join(map(_character, value))]
    forms += ["".join({"+": "[+-]", "/": "[/_]"}.get(c, re.escape(c)) for c in core) for core in _in_base64(value)]
    return re.compile("|".join(forms))


def _in_base64(value: str) -> Iterator[str]:
    """In base64 a text looks in one of three ways, by what stands before it; its ends mix with its neighbours."""
    raw = value.encode(errors="surrogatepass")
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode()
        core = encoded[(0, 2, 3)[shift] : len(encoded) - (0, 3, 2)[(len(raw) + shift) % 3]]
        if len(core) >= 2 * SHORTEST:
            yield core


def _longest_part(text: str) -> str:
    """The longest run of characters that `_character` leaves as they are."""
    return max(re.findall("[0-9A-Za-z]+", text), key=len, default="")


def _character(character: str) -> str:
    """One character in every way it is written: as it is, escaped, as in a URL or in HTML, and all of it repeatedly."""
    if character.isascii() and character.isalnum():
        return character
    plain = "|".join([re.escape(character), _in_url(character), _in_html(character), *_INSTEAD.get(character, ())])
    code = ord(character)
    escapes = "|".join([f"u{_hex(f'{code:04x}')}", f"x{_hex(f'{code:02x}')}", *_ESCAPES.get(character, ())])
    return f"(?:{_BACKSLASH}{{0,8}}(?:{plain})|{_BACKSLASH}{{1,8}}(?:{escapes}))"


def _in_url(character: str) -> str:
    """Every client encodes others; encoded again, its `%` has become `%25`."""
    return "".join(f"{_PERCENT}{_hex(f'{byte:02x}')}" for byte in character.encode(errors="surrogatepass"))


def _in_html(character: str) -> str:
    from html.entities import codepoint2name

    code = ord(character)
    names = {codepoint2name.get(code), "apos" if character == "'" else None} - {None}
    ways = [*sorted(map(str, names)), f"{_NUMBER}0{{0,6}}{code}", f"{_NUMBER}[xX]0{{0,6}}{_hex(f'{code:x}')}"]
    return f"{_AMPERSAND}(?:{'|'.join(ways)}){_SEMICOLON}"


def _hex(digits: str) -> str:
    """Hexadecimal digits in either case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits)
