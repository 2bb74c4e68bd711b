"""The kernel's own settings, declared once each, and what is made of declarations: the sample and the reference.

A program declares its own in the same way (`App.settings`), and they appear in both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock.settings import setting as kind
from penstock.settings.setting import REQUIRED, Setting

SHIPPED = (
    "penstock.lifecycles.reports.program:app",
    "penstock.lifecycles.partitions.google_ads:app",
    "penstock.lifecycles.harvest.program:app",
)
"""The programs that come with Penstock."""

SETTINGS = (
    Setting(
        "app",
        kind.text,
        None,
        "The program: its machines, flows and jobs, as module:attribute.",
        "--app",
        "PENSTOCK_APP",
    ),
    Setting(
        "ledger.url",
        kind.ledger_address,
        "sqlite:///penstock.db",
        "Where the ledger is.",
        "--ledger",
        "PENSTOCK_LEDGER",
        anchor=kind.below,
    ),
    Setting("ledger.password", kind.secret, None, "The password of a PostgreSQL ledger; never part of its address."),
    Setting(
        "ledger.connections",
        kind.whole(2, 1_000),
        6,
        "How many connections to PostgreSQL one process opens at most; one of them is the lease's.",
    ),
    Setting(
        "worker.concurrency",
        kind.whole(1, 100_000),
        1_000,
        "How many steps run at once in one process.",
        "--concurrency",
        "PENSTOCK_CONCURRENCY",
    ),
    Setting(
        "worker.lease",
        kind.span,
        "30s",
        "How long others wait for a worker that is silent before they take over what it holds.",
    ),
    Setting(
        "worker.renew",
        kind.span,
        "10s",
        "How often a worker renews its lease; at most half of it.",
    ),
    Setting(
        "worker.stop_seconds",
        kind.number(0, 3_600),
        8.0,
        "How long running steps may take to finish when the process stops or reads its configuration again.",
    ),
    Setting(
        "log.level",
        kind.one_of("debug", "info", "warning", "error"),
        "info",
        "The least severe log line that is written.",
        "--log-level",
        "PENSTOCK_LOG",
    ),
    Setting(
        "log.format",
        kind.one_of("auto", "json", "console"),
        "auto",
        "JSON lines, or lines for people; auto is for people on a terminal and JSON elsewhere.",
    ),
    Setting(
        "prune.*",
        kind.age,
        REQUIRED,
        "How long the ended units of a machine are kept (of all: units), or the rows of a log.",
        examples={"invoice": "90d"},
    ),
    Setting(
        "providers.*.limits",
        kind.limits,
        (),
        "How fast each gate of the provider may be asked, on every count.",
        examples={"accounting": [{"name": "requests", "rate": 2.0, "burst": 40}]},
    ),
    Setting(
        "providers.*.max_in_flight",
        kind.whole(1, 100_000),
        None,
        "How many calls may be under way at once at each gate of the provider.",
        examples={"accounting": 10},
    ),
    Setting("providers.*.accounts.*.limits", kind.limits, None, "The same for one account, instead of its provider's."),
    Setting(
        "providers.*.accounts.*.max_in_flight",
        kind.whole(1, 100_000),
        None,
        "The same for one account, instead of its provider's.",
    ),
    Setting(
        "schedules.*.job",
        kind.text,
        REQUIRED,
        "What to run: a job of the kernel or of the program.",
        examples={"nightly-prune": "prune", "sweep": "sweep-stages"},
    ),
    Setting(
        "schedules.*.every",
        kind.span,
        None,
        "How often, counted from midnight UTC; either this or 'at'.",
        examples={"sweep": "15m"},
    ),
    Setting(
        "schedules.*.at",
        kind.moments,
        None,
        "At which times of day; either this or 'every'.",
        examples={"nightly-prune": ["03:30"]},
    ),
    Setting(
        "schedules.*.time_zone",
        kind.zone,
        "UTC",
        "Where the times of day are read.",
        examples={"nightly-prune": "Europe/Madrid"},
    ),
    Setting(
        "schedules.*.hours",
        kind.hours,
        None,
        "Only within these hours; for 'every'.",
        examples={"sweep": "22:00-06:00"},
    ),
    Setting(
        "schedules.*.jitter",
        kind.span,
        None,
        "Spread over so long, for many that would fall due together; the same for a name every time.",
        examples={"sweep": "5m"},
    ),
    Setting(
        "schedules.*.settings",
        kind.table,
        None,
        "What the job wants to know.",
    ),
)


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _example(setting: Setting) -> str:
    """What could stand where there is no default."""
    if setting.key == "app":
        return toml(SHIPPED[0])
    named = setting.key.upper().replace(".", "_")
    return f'{{ env = "{named}" }}' if setting.read is kind.secret else toml("…")


def sample(settings: Sequence[Setting] = SETTINGS, app: str | None = None) -> str:
    """A commented file that works as it is: every setting at its default, and an example of what has none."""
    lines = ["# Penstock's configuration. A line that is commented out shows a default, or an example."]
    for table in sorted({s.parts[:-1] for s in settings if "*" not in s.parts}):
        lines += ["", *([f"[{'.'.join(table)}]"] if table else [])]
        for setting in settings:
            if setting.parts[:-1] == table and "*" not in setting.parts:
                value = setting.default
                shown = _example(setting) if value is None else toml(value)
                lines += [f"# {setting.help}", f"# {setting.parts[-1]} = {shown}"]
                if setting.key == "app" and app is not None:
                    lines[-1] = f"app = {toml(app)}"
    families = {s.parts[:2] for s in settings if "*" in s.parts and s.examples}
    for family in sorted(families):
        own = [s for s in settings if s.parts[:2] == family and s.examples]
        if family == own[0].parts:
            lines += ["", f"# [{family[0]}]", f"# {own[0].help}"]
            lines += [f"# {name} = {toml(value)}" for name, value in own[0].examples.items()]
            continue
        for name in dict.fromkeys(name for s in own for name in s.examples):
            lines += ["", f"# [{family[0]}.{name}]"]
            for setting in own:
                if name in setting.examples:
                    lines += [f"# {setting.help}", f"# {setting.parts[-1]} = {toml(setting.examples[name])}"]
    return "\n".join([*lines, ""])


def reference(settings: Sequence[Setting] = SETTINGS) -> str:
    """The table of the docs."""
    lines = ["| setting | takes | default | also given by | meaning |", "|---|---|---|---|---|"]
    for setting in settings:
        ways = ", ".join(f"`{way}`" for way in (setting.option, setting.variable) if way)
        if setting.default is REQUIRED:
            shown = "must be given" if setting.parts[-1] != "*" else ""
        else:
            shown = "" if setting.default in (None, ()) else f"`{toml(setting.default)}`"
        takes = setting.allowed().replace("|", "\\|")
        lines.append(f"| `{setting.key}` | {takes} | {shown} | {ways} | {setting.help} |")
    return "\n".join([*lines, ""])
