"""`penstock events`: what happened, who was told, and telling again those who refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import ConfigOption, JsonOption, LedgerOption, echo, settle, user

if TYPE_CHECKING:
    from penstock.ledger.store.database import Database

events = typer.Typer(help="The event log and its deliveries.", no_args_is_help=True)
_AT_ONCE = 5_000


@events.command("list")
def list_(
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    alerts: Annotated[bool, typer.Option("--alerts", help="Only events with a severity.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 20,
    json: JsonOption = False,
) -> None:
    """List the newest events and what became of their deliveries."""
    from penstock.cli import show
    from penstock.ledger.outbox import list_events

    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found = list_events(database, most=limit, alerts=alerts)
    if json:
        show.print_json([{**_plain(f.event), "deliveries": dict(f.deliveries)} for f in found])
    else:
        show.events(found)


@events.command("retry")
def retry(
    subscriber: Annotated[str | None, typer.Argument(help="Only the dead letters of this subscriber.")] = None,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the history.")] = "retried by hand",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many, and change nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Deliver dead letters again: each becomes pending, with all its retries."""
    from penstock.cli import show
    from penstock.ledger import outbox
    from penstock.ledger.ledger import Ledger
    from penstock.model.machine import Actor

    url = settle(config, {"ledger.url": ledger}).url
    with show.reading(url) as database:
        _refuse_unknown(database, subscriber)
        dead = outbox.dead_letters(database, subscriber)
    moved = 0
    skipped: dict[str, str] = {}
    if dead and not dry_run:
        with Ledger.open(url, [outbox.machine]) as opened, show.progress(len(dead), quiet=json) as step:
            for start in range(0, len(dead), _AT_ONCE):
                some = opened.move_many(
                    outbox.machine.name,
                    dead[start : start + _AT_ONCE],
                    outbox.D.PENDING,
                    actor=Actor.OPERATOR,
                    who=user(),
                    reason=reason,
                    attempts=0,
                    due_at=opened.clock.now(),
                )
                moved += len(some.moved)
                skipped |= {str(ref): why for ref, why in some.skipped.items()}
                step(f"{moved:,} of {len(dead):,}")
    if json:
        show.print_json({"dead": len(dead), "retried": moved, "skipped": skipped, "dry_run": dry_run})
        return
    echo(
        f"{len(dead):,} dead letters would be retried"
        if dry_run
        else f"{moved:,} of {len(dead):,} dead letters retried"
    )
    for name, why in skipped.items():
        echo(f"{name}: {why}", err=True)


def _refuse_unknown(database: Database, subscriber: str | None) -> None:
    from penstock.ledger.outbox import subscribers
    from penstock.model.errors import UsageError

    known = subscribers(database)
    if not known:
        msg = "nobody has subscribed to events of this ledger; there is nothing to retry"
        raise UsageError(msg)
    if subscriber is not None and subscriber not in known:
        msg = f"no subscriber is called {subscriber!r}; this ledger has {', '.join(known)}"
        raise UsageError(msg)


def _plain(event: object) -> dict[str, object]:
    import dataclasses

    return {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}  # type: ignore[arg-type]
