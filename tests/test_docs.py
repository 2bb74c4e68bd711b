"""The documentation says what the program does: every name that a user meets is there, and nothing shown is stale."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from penstock.examples.invoices import machine as invoice
from penstock.ledger.care.doctor import CHECKS
from penstock.ledger.schema import triggers_postgres, triggers_sqlite
from penstock.ledger.schema.tables import kernel_tables, machine_table
from penstock.model.errors import StepError
from penstock.model.unit import DRIVEN_COLUMNS, field_types
from penstock.operations import access_tables
from penstock.operations.alerts.tables import alert_memory
from penstock.operations.bulk.tables import bulk_item
from penstock.operations.dismissal import dismissal
from penstock.worker.held import Counts
from tests.support.commands import commands
from tests.support.pages import GENERATED, PAGES, ROOT, generated

DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "src").rglob("*.py"))

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
RUNNABLE = re.compile(r"^<!-- runnable -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def section(text: str, title: str) -> str:
    """What stands below a heading, to the next one of the same or a higher level; empty when there is none."""
    found = re.search(rf"^(#+) {re.escape(title)} *$", text, re.MULTILINE)
    if found is None:
        return ""
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def row_of(text: str, name: str) -> str:
    """The table row whose first cell is that name in code; empty when there is none."""
    found = re.search(rf"^\| `{re.escape(name)}` \|.*$", text, re.MULTILINE)
    return found[0] if found else ""


@functools.cache
def logged() -> dict[str, set[str]]:
    """Event to fields, of every call of the log in the source."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        text = path.read_text()
        if not re.search(r"\blog\b", text):  # nothing to parse
            continue
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            owner, event = node.func.value, node.args[0]
            if isinstance(owner, ast.Name) and owner.id == "log" and node.func.attr in LEVELS:
                name = event.value if isinstance(event, ast.Constant) else None
                assert isinstance(name, str), f"{shown(path)}:{node.lineno}: an event's name is a literal"
                fields = found.setdefault(name, set())
                for keyword in node.keywords:
                    fields |= {keyword.arg} if keyword.arg else {f.name for f in dataclasses.fields(Counts)}
    return found


def variables() -> set[str]:
    """Environment variables that the program reads."""
    text = "\n".join(path.read_text() for path in SOURCES)
    read = re.findall(r"environ(?:\.get\(|\[)\s*\"(\w+)\"|envvar=\"(\w+)\"", text)
    return {name for pair in read for name in pair if name} | set(re.findall(r"\bPENSTOCK_[A-Z_]+\b", text))


def constants(pattern: str) -> set[str]:
    """Literal texts of the source that match as a whole."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(pattern, node.value):
                found.add(node.value)
    return found


def slug(heading: str) -> str:
    plain = re.sub(r"[^\w\- ]", "", heading.lower())
    return plain.replace(" ", "-")


def test_the_scans_find_something():
    assert "penstock db upgrade" in commands()
    assert {"worker.started", "ledger.away", "step.failed"} <= set(logged())
    assert {"PENSTOCK_LEDGER", "PENSTOCK_CONFIG", "PENSTOCK_LOG"} <= variables()
    assert constants(r"unit\.[a-z_]+") >= {"unit.dead", "unit.parked"}


@pytest.mark.parametrize("name", commands())
def test_every_command_and_option_is_documented(name):
    text = section(page("commands.md"), name)
    assert text, f"docs/commands.md has no heading {name!r}"
    shared = page("commands.md").partition("<!-- generated: commands -->")[0]
    options = {o for p in commands()[name].params if p.param_type_name == "option" for o in p.opts}
    missing = [o for o in options if f"`{o}" not in text and not row_of(shared, o)]
    assert missing == [], f"options of {name} that docs/commands.md leaves out"


def test_every_argument_and_option_says_what_it_is():
    silent = [
        f"{name} {p.name}"
        for name, command in commands().items()
        for p in command.params
        if p.name != "help" and not getattr(p, "help", None)
    ]
    assert silent == []


def test_every_environment_variable_is_documented():
    text = section(page("commands.md"), "Environment")
    assert {name for name in variables() if not row_of(text, name)} == set()


def test_every_check_of_the_doctor_is_documented():
    text = section(page("commands.md"), "What the doctor checks")
    assert [name for name in CHECKS if not row_of(text, name)] == []


@pytest.mark.parametrize("event", logged())
def test_every_log_event_is_documented_with_its_fields(event):
    row = row_of(section(page("operations.md"), "Logs"), event)
    assert row, f"{event} has no row in docs/operations.md"
    fields = row.split("|")[3]
    assert [name for name in logged()[event] if f"`{name}`" not in fields] == []


def test_every_kernel_table_and_column_is_documented():
    for dialect in ("sqlite", "postgresql"):
        for table in (*kernel_tables(dialect), bulk_item, dismissal, alert_memory, *access_tables.TABLES):
            text = section(page("schema.md"), f"`{table.name}`")
            assert text, f"docs/schema.md has no heading for {table.name}"
            missing = [c.name for c in table.columns if f"`{c.name}`" not in text]
            assert missing == [], f"columns of {table.name} that docs/schema.md leaves out"


def test_every_column_of_a_machine_is_documented():
    text = section(page("schema.md"), "Machine tables")
    kept = {column.name for column in machine_table(invoice, "sqlite").columns} - {*field_types(invoice.unit)}
    assert "last_action" in kept
    assert [name for name in (*DRIVEN_COLUMNS, *kept) if not row_of(text, name)] == []


def test_every_trigger_is_documented():
    text = section(page("schema.md"), "Triggers")
    kernel = {*triggers_sqlite.kernel_triggers({}), *triggers_postgres.kernel_triggers("x")}
    own = {*triggers_sqlite.machine_triggers(invoice), *triggers_postgres.machine_triggers(invoice, "x")}
    names = kernel | {name.replace("_invoice_", "_<machine>_") for name in own}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_event_of_the_kernel_is_documented():
    text = section(page("schema.md"), "`event_log`")
    names = constants(r"(unit|gate|machine)\.[a-z_]+")
    assert {name for name in names if not row_of(text, name)} == set()
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(set(rows))


def test_every_class_of_error_is_documented():
    text = section(page("concepts.md"), "Errors and retry")
    assert [kind.__name__ for kind in StepError.__subclasses__() if not row_of(text, kind.__name__)] == []


@pytest.mark.parametrize("name", ["concepts.md", "lifecycle.md"])
def test_every_state_of_the_example_is_documented(name):
    prose = FENCE.sub("", page(name))
    assert [state for state in invoice.states if state not in page(name)] == []
    assert [state for state in invoice.states if f"`{state}`" in prose], "the text speaks of the states"


def generated_parts() -> list[Any]:
    return [
        pytest.param(what, text, id=f"{shown(path)}-{what}")
        for path in PAGES
        for what, text in GENERATED.findall(path.read_text())
    ]


def test_there_are_generated_parts():
    assert {"commands", "settings", "invoice", "report", "partition", "harvest_run"} <= {
        part.values[0] for part in generated_parts()
    }


@pytest.mark.parametrize(("what", "text"), generated_parts())
def test_generated_parts_are_what_the_declarations_say(what, text):
    assert text == generated(what), "it is stale; run 'python -m tests.support.pages'"


def test_no_diagram_is_drawn_by_hand():
    for path in PAGES:
        text = path.read_text()
        made = [part for _, part in GENERATED.findall(text) if part.startswith("```mermaid")]
        assert text.count("```mermaid") == len(made), shown(path)


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_every_link_leads_somewhere(path):
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{shown(path)}: {target}"
        if anchor:
            headings = HEADING.findall(FENCE.sub("", there.read_text()))
            assert anchor in {slug(h) for h in headings}, f"{shown(path)}: {target}"


def test_every_page_is_reached_from_the_readme():
    text = (ROOT / "README.md").read_text()
    assert [shown(p) for p in DOCS.glob("*.md") if f"(docs/{p.name})" not in text] == []


def test_every_dependency_has_a_sentence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    wanted = {Requirement(line).name for line in [*project["dependencies"], *extras]}
    told = set(re.findall(r"^- `([\w.-]+)`: \w", page("decisions/0001-dependencies.md"), re.MULTILINE))
    assert told == wanted


def test_decisions_are_numbered_and_say_context_decision_consequence():
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [p.name[:4] for p in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    for path in pages:
        headings = HEADING.findall(path.read_text())
        assert headings[0].startswith(path.name[:4]), shown(path)
        assert headings[1:] == ["Context", "Decision", "Consequence"], shown(path)


def examples() -> list[Any]:
    found = []
    for path in PAGES:
        text = path.read_text()
        assert text.count("<!-- runnable -->") == len(RUNNABLE.findall(text)), f"{shown(path)}: a marker alone"
        found += [pytest.param(code, id=f"{shown(path)}-{n}") for n, code in enumerate(RUNNABLE.findall(text), 1)]
    return found


@pytest.mark.parametrize("code", examples())
def test_every_runnable_example_runs(code, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=os.environ | {"PENSTOCK_LOG": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
