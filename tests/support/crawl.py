"""Every page that the desk leads to, found by following its links."""

from __future__ import annotations

import html
import re
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterable
from urllib.parse import parse_qsl, urlsplit

MOST = 300
_ENOUGH = 6


def kind_of(link: str) -> tuple[str, ...]:
    """Pages of one kind are rendered alike: one unit of a machine stands for all, one moment for any other."""
    found = urlsplit(link)
    if found.path.startswith("/units/"):
        return (*found.path.split("/")[:3], "at" if "at=" in found.query else "")
    if found.path.startswith(("/do/", "/machines/")) or found.path == "/":
        return (found.path, "at" if "at=" in found.query else "")
    return (found.path, *sorted({name for name, _ in parse_qsl(found.query)}))


def fetched(address: str, token: str | None = None) -> tuple[int, str]:
    """Status and text of a page."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def pages(home: str, token: str | None = None, most: int = MOST) -> dict[str, str]:
    """The text of one page of each kind by its address, without that of the desk; the overview first.

    Raises AssertionError for a link that leads nowhere.
    """
    root = urlsplit(home).path
    seen: set[tuple[str, ...]] = set()
    found: dict[str, str] = {}
    waiting = deque(["/"])
    while waiting and len(found) < most:
        link = waiting.popleft()
        if kind_of(link) in seen:
            continue
        seen.add(kind_of(link))
        status, text = fetched(home + link, token)
        assert status == 200, (link, status, re.sub(r"<[^>]+>|\s+", " ", text)[-400:])
        found[link] = text
        links = [html.unescape(one) for one in re.findall(r'href="([^"]*)"', text)]
        assert all(one.startswith(("/", "?", "#")) for one in links), (link, links)
        own = [one.removeprefix(root) for one in links if one.startswith(f"{root}/")]
        waiting.extend(one for one in own if not one.startswith(("/static/", "/api/")))
    return found


def some_of_each(found: Iterable[str]) -> list[str]:
    """The pages of now; of those that are one template, only some."""
    kept: dict[str, int] = {}
    links = []
    for link in found:
        top = link.split("/")[1]
        kept[top] = kept.get(top, 0) + 1
        if "at=" not in link and (top in {"read", "lifecycles", "machines"} or kept[top] <= _ENOUGH):
            links.append(link)
    return links
