"""`penstock schedules`: the periodic jobs, when each ticks next, and resting or running them by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import ConfigOption, JsonOption, LedgerOption, echo, settle, user

schedules = typer.Typer(help="The periodic jobs.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who does it, for the history; else your user name.")]


@schedules.command("list")
def list_(config: ConfigOption = None, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """List the schedules: what they run, how often, the last tick and the next."""
    from penstock.cli import show
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import present
    from penstock.worker.schedule import machine

    url = settle(config, {"ledger.url": ledger}).url
    with show.reading(url) as database:
        now = database.read(lambda cursor: present(database, cursor))
    with Ledger.open(url, [machine]) as opened:
        names = [row[0] for row in opened.read(lambda c: c.rows("SELECT unit_id FROM schedule ORDER BY unit_id"))]
        found = opened.get_many(machine, names) if names else []
    if json:
        show.print_json(found)
    else:
        show.schedules(found, now)


@schedules.command("pause")
def pause(
    name: NameArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the history.")],
    *,
    by: ByOption = None,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Let a schedule rest until it is resumed. A run under way ends; the configuration does not wake it."""
    _move(settle(config, {"ledger.url": ledger}).url, name, "paused", by=by, reason=reason)
    _told(name, "paused", json=json)


@schedules.command("resume")
def resume(
    name: NameArgument,
    *,
    by: ByOption = None,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Let a paused schedule tick again, the next time at its next tick."""
    due = _move(settle(config, {"ledger.url": ledger}).url, name, "active", by=by, reason="resumed")
    _told(name, f"active; the next tick is at {due}", json=json)


@schedules.command("run")
def run(
    name: NameArgument,
    *,
    by: ByOption = None,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Let an active schedule tick now; a worker that is running does the work."""
    from penstock.ledger.ledger import Ledger
    from penstock.model.errors import UsageError
    from penstock.model.unit import Ref
    from penstock.worker.schedule import S, machine

    with Ledger.open(settle(config, {"ledger.url": ledger}).url, [machine]) as opened:
        found = opened.get(Ref("schedule", name))
        if found.status is not S.ACTIVE:
            msg = f"the schedule {name!r} is {found.status}; resume it first"
            raise UsageError(msg)
        opened.wake([Ref("schedule", name)], who=by or user(), reason="run by hand")
    _told(name, f"due now; follow it with 'penstock why schedule:{name}'", json=json)


def _move(url: str, name: str, to: str, *, by: str | None, reason: str) -> str:
    """Pull an operator's edge; when the schedule ticks next, or nothing."""
    from penstock.ledger.ledger import Ledger
    from penstock.model.machine import Actor
    from penstock.model.unit import Ref
    from penstock.worker.schedule import Schedule, cadence_of, machine

    with Ledger.open(url, [machine]) as opened:
        ref = Ref("schedule", name)
        found = opened.get(ref)
        assert isinstance(found, Schedule)  # noqa: S101 - the machine's unit
        due = cadence_of(found).next_after(opened.clock.now(), name) if to == "active" else None
        opened.move(ref, to, actor=Actor.OPERATOR, who=by or user(), reason=reason, due_at=due)
    return f"{due.astimezone():%Y-%m-%d %H:%M:%S}" if due is not None else ""


def _told(name: str, what: str, *, json: bool) -> None:
    from penstock.cli import show

    if json:
        show.print_json({"schedule": name, "is": what})
    else:
        echo(f"{name} is {what}")
