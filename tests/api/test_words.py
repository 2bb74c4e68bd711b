"""What is refused is told in words that fit every surface: at a terminal, over HTTP, and on a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import penstock
from penstock.api.routes import PREFIX
from tests.support.served import served
from tests.support.web import Site

_COMMAND = re.compile(r"'penstock [^']*'")
_OPTION = re.compile(r"(?<![\w-])--[a-z-]+")


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/units/wake/preview", {}),
        ("/dead/retry/preview", {}),
        ("/alerts/ack/preview", {}),
        ("/token/create/preview", {"name": "jo", "role": "viewer", "expires": "9999d"}),
        ("/units/create/preview", {"machine": "order"}),
        ("/units/create/preview", {"machine": "order", "set": ["shop"]}),
        ("/units", {"machine": "order", "after": "schedule:a"}),
        ("/forecast", {"at": "0001-01-01T00:00:00Z"}),
    ],
)
def test_an_error_of_the_api_names_no_option_of_the_command_line(still_site: Site, path: str, given: dict[str, Any]):
    with served(still_site) as desk:
        if path.endswith("/preview"):
            answer = desk.post(f"{PREFIX}{path}", given)
        else:
            answer = desk.ask("GET", f"{PREFIX}{path}?{urlencode(given)}")
    assert answer.status in {400, 422}, answer.body
    assert _OPTION.search(_COMMAND.sub("", answer.text)) is None, answer.text


ONLY_AT_A_TERMINAL = {"--prices", "--watch"}
"""What no other surface has; a text that names one of these is read at a terminal alone."""


def refusals() -> Iterator[tuple[str, str]]:
    """Every text that an operation or a lifecycle refuses with, and where."""
    root = Path(penstock.__file__).parent
    for folder in ("operations", "lifecycles"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Raise) and node.exc is not None:
                    texts = [one.value for one in ast.walk(node.exc) if isinstance(one, ast.Constant)]
                    yield f"{path.name}:{node.lineno}", "".join(text for text in texts if isinstance(text, str))


def test_no_refusal_of_a_declaration_names_an_option_that_other_surfaces_lack():
    found = list(refusals())
    assert len(found) > 100
    named = {where: set(_OPTION.findall(_COMMAND.sub("", text))) for where, text in found}
    assert {where: options for where, options in named.items() if options and not options & ONLY_AT_A_TERMINAL} == {}
    assert set().union(*named.values()) >= ONLY_AT_A_TERMINAL, "one that nobody names is no exception any more"
