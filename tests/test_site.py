"""The documentation as a site: links lead somewhere, nothing is loaded from elsewhere, commands named exist."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest

from tests.support.commands import parse
from tests.support.pages import ROOT

make_site = pytest.importorskip("docs.make_site")
ALERTS = (ROOT / "docs" / "alerts.md").read_text().partition("\n## Runbook\n")[2]
ENTRIES = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=\n###|\Z)", ALERTS, re.MULTILINE | re.DOTALL))


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "src" in given or "srcset" in given or tag == "link":
            self.loads.append(given.get("src") or given.get("srcset") or given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    make_site.build(folder)
    return Path(folder)


def test_every_link_leads_somewhere(site):
    made = {path: Page(path) for path in site.rglob("*.html")}
    assert len(made) > 80
    lost = [
        f"{path.relative_to(site)}: {link}"
        for path, page in made.items()
        for link in page.links
        if not urlsplit(link).scheme and not _there(made, path, link)
    ]
    assert lost == []


def _there(made: dict[Path, Page], path: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    page = made.get((path.parent / unquote(name)).resolve() if name else path)
    return page is not None and (not anchor or unquote(anchor) in page.anchors)


def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        for name in Page(path).loads:
            assert not urlsplit(name).scheme, path
            assert (path.parent / name).exists() or "pictures/" in name, f"{path}: {name}"
        assert "<script" not in path.read_text()
    assert "http" not in (site / "site.css").read_text()


def test_every_page_stands_in_the_navigation_once():
    listed = [name for names in make_site.NAVIGATION.values() for name in names]
    there = [path.stem for path in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted(["README", "decisions", *there])


def test_diagrams_are_drawn(site):
    assert "<svg" in (site / "reports.html").read_text()
    assert "stateDiagram" not in "".join(path.read_text() for path in site.rglob("*.html"))


@pytest.mark.parametrize("policy", ENTRIES)
def test_an_entry_of_the_runbook_says_what_to_look_at(policy):
    named = [" ".join(one.split()) for one in re.findall(r"`(penstock\s[^`]*)`", ENTRIES[policy])]
    assert named, "name a command that shows more"
    assert [one for one in named if not complete(one)] == []


def complete(command: str) -> bool:
    """Whether the command line takes it as it is written; a word in capitals stands for a value."""
    try:
        parse(command.split()[1:])
    except click.UsageError:
        return False
    return True


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        ("penstock partitions runs", False),
        ("penstock partitions runs PARTITION", True),
        ("penstock reports show", False),
        ("penstock gates lists", False),
        ("penstock dead list --machines NAME", False),
        ("penstock dead list --machine", False),
        ("penstock", False),
    ],
)
def test_a_command_that_would_fail_as_written_is_found(command, taken):
    assert complete(command) == taken
