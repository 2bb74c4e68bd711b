"""The address of the next page, where an answer gives one: it leads nowhere but to the API itself."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from penstock.model.errors import Rejected
from penstock.model.inert import inert

LONGEST = 4_000
"""How long an address or a cursor may be."""
_MOST_HEADER = 16_000
_NOTE_FORM = r';\s*(%s[\w!#$&+.^`|~*-]+)\s*(?:=\s*(?:"(%s(?:[^"\\]|\\.)*)"|(%s[^\s";,]*))\s*)?'
_NOTE = re.compile(_NOTE_FORM % ("", "", ""))
_LINK = re.compile(r"<([^<>]*)>\s*((?:" + _NOTE_FORM % ("?:", "?:", "?:") + ")*)")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_PORTS = {"http": 80, "https": 443}


def next_in_header(header: str) -> str | None:
    """The address of `rel="next"` in a Link header (RFC 8288); None where there is none."""
    for address, notes in _LINK.findall(header[:_MOST_HEADER]):
        found = {name.lower(): quoted or plain for name, quoted, plain in reversed(_NOTE.findall(notes))}
        if "next" in found.get("rel", "").lower().split() and "anchor" not in found:
            return str(address)
    return None


def followed(call: str, origin: str, current: str, link: str) -> str:
    """Path and parameters of the page that a link leads to, from the page `current` of the API at `origin`.

    Raises Rejected for a link that leads anywhere else, and for one that leads back to the same page. Of a refused
    link only the host is told: the rest of it may open something.
    """
    if len(link) > LONGEST:
        raise Rejected(f"{call}: the link to the next page has {len(link):,} characters; {LONGEST:,} is the most")
    try:
        parts = urlsplit(urljoin(f"{origin}{current}", link.strip()))
        leads_home = _site(parts) == _site(urlsplit(origin))
    except ValueError:
        raise Rejected(f"{call}: the link to the next page is not an address") from None
    if not leads_home:
        raise Rejected(
            f"{call}: the link to the next page leads away from {origin}, and is not followed: {_shown(parts)}"
        )
    if "@" in parts.netloc:
        raise Rejected(f"{call}: the link to the next page has a user name in it, and is not followed")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = quote(target, safe=_PRINTABLE)
    if target == current:
        raise Rejected(f"{call}: the link to the next page repeats the page itself")
    return target


def _shown(parts: SplitResult) -> str:
    """Where an address leads, without names, passwords, paths and parameters."""
    if not parts.hostname:
        return "it names no host"
    port = "" if parts.port is None else f":{parts.port}"
    return inert(f"{parts.scheme}://{parts.hostname}{port}"[:200])


def _site(parts: SplitResult) -> tuple[str, str, int | None]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)
