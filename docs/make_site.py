"""Writes the documentation as pages for a browser, to build/site: `make docs`. They load nothing from elsewhere."""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, Template
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from penstock.app.app import App
from penstock.app.shipped import SHIPPED, shipped
from penstock.examples import invoices
from penstock.web.svg.diagram import Live, diagram

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SITE = ROOT / "build" / "site"
NAVIGATION = {
    "Start": ["README", "tutorial", "demonstration"],
    "How to": ["lifecycle", "connectors", "rest-json", "deployment", "operations"],
    "Concepts": ["concepts", "reports", "harvest", "queries", "rules", "partitions"],
    "Reference": ["commands", "configuration", "desk", "api", "metrics", "schema", "reliability", "benchmarks"],
    "Runbook": ["alerts"],
    "Why": ["decisions"],
}
"""Every page stands in it once."""
_DIAGRAM = re.compile(r"<!-- generated: (\w+) -->\n```mermaid\n.*?```\n<!-- end -->\n", re.DOTALL)
_RUNBOOK = re.compile(r"^### (\w+)$", re.MULTILINE)


def build(site: Path = SITE) -> list[Path]:
    """Write every page anew; returns them."""
    shutil.rmtree(site, ignore_errors=True)
    (site / "decisions").mkdir(parents=True)
    if (DOCS / "pictures").is_dir():
        shutil.copytree(DOCS / "pictures", site / "pictures")
    shutil.copy(ROOT / "src" / "penstock" / "web" / "static" / "icon.svg", site)
    shutil.copy(DOCS / "site.css", site)
    return [_write(site, source, place) for source, place in pages().items()] + [_decisions(site)]


@functools.cache
def pages() -> dict[Path, str]:
    """Each source and where its page is, from the site's root."""
    found = {ROOT / "README.md": "index.html"}
    found |= {ROOT / f"{name.upper()}.md": f"{name}.html" for name in ("contributing", "changelog")}
    return found | {path: f"{path.relative_to(DOCS).with_suffix('')}.html" for path in sorted(DOCS.rglob("*.md"))}


def _write(site: Path, source: Path, place: str) -> Path:
    text = _DIAGRAM.sub(lambda found: f"\n<figure>{_drawn(found[1])}</figure>\n\n", source.read_text())
    return _page(site, place, *_rendered(text, source))


def _decisions(site: Path) -> Path:
    """The list of decisions, the newest first."""
    paths = sorted((DOCS / "decisions").glob("*.md"), reverse=True)
    items = [f"- [{_title(path)}]({path.name})" for path in paths]
    text = "# Decisions\n\nWhy things are as they are, one page each, the newest first.\n\n" + "\n".join(items)
    return _page(site, "decisions/index.html", *_rendered(text, DOCS / "decisions" / "index.md"))


def _page(site: Path, place: str, title: str, body: str) -> Path:
    up = "../" * place.count("/")
    path = site / place
    path.write_text(_template().render(title=title, body=Markup(body), up=up, place=place, groups=_navigation()))  # noqa: S704 - ours
    return path


@functools.cache
def _template() -> Template:
    return Environment(loader=FileSystemLoader(DOCS), autoescape=True).get_template("site.html")


@functools.cache
def _navigation() -> dict[str, list[tuple[str, str]]]:
    return {group: [_entry(name) for name in names] for group, names in NAVIGATION.items()} | {
        "Alerts": [(name, f"alerts.html#{name}") for name in _RUNBOOK.findall((DOCS / "alerts.md").read_text())]
    }


def _entry(name: str) -> tuple[str, str]:
    if name == "decisions":
        return "Decisions", "decisions/index.html"
    source = ROOT / "README.md" if name == "README" else DOCS / f"{name}.md"
    return _title(source), pages()[source]


def _title(source: Path) -> str:
    return source.read_text().partition("\n")[0].lstrip("# ")


def _rendered(text: str, source: Path) -> tuple[str, str]:
    """The title and the HTML of a page."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table"])
    tokens = reader.parse(text)
    title = ""
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            plain = "".join(child.content for child in token.children or ())
            before.attrSet("id", slug(plain))
            title = title or plain
    for token in _inside(tokens):
        if token.type == "link_open":
            token.attrs["href"] = _target(str(token.attrGet("href")), source)
    body = reader.renderer.render(tokens, reader.options, {})
    return title, body.replace('"docs/pictures/', '"pictures/').replace("<table>", '<div class="wide"><table>').replace(
        "</table>", "</table></div>"
    )


def _inside(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _inside(token.children or [])


def _target(address: str, source: Path) -> str:
    """A link between sources as one between pages; to what is no page it is a link to the text's beginning."""
    if re.match(r"[a-z]+:", address) or address.startswith("#"):
        return address
    name, mark, anchor = address.partition("#")
    there = (source.parent / name).resolve()
    if there == DOCS / "decisions":
        there = DOCS / "decisions" / "index.md"
    place = {**pages(), DOCS / "decisions" / "index.md": "decisions/index.html"}.get(there)
    up = "../" if source.parent == DOCS / "decisions" else ""
    return f"{up}{place}{mark}{anchor}" if place else "#text"


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def _drawn(name: str) -> str:
    """A machine as the desk draws it."""
    machines = {one.name: one for one in App(*map(shipped, SHIPPED), invoices.lifecycle).machines}
    return diagram(machines[name], Live({}, {}, {}), lambda _: "#", lambda *_: "#").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(f"{len(build())} pages in build/site\n")
