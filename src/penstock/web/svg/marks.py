"""Elements of a picture, as text. Whatever comes from outside is escaped here, once."""

from __future__ import annotations

from html import escape


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """`element("rect", x=1, class_="bar")`. None leaves an attribute out; `_` in a name stands for `-`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{content}</{name}>"


def words(text: object) -> str:
    """Text inside an element."""
    return escape(_text(text), quote=False)


def titled(text: str) -> str:
    """What is shown when a pointer rests on it."""
    return element("title", words(text))


def _text(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
