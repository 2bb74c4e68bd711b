"""`penstock providers`: the gates to other people's APIs, and holding or opening them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.options import ConfigOption, JsonOption, LedgerOption, echo, settle, user

providers = typer.Typer(help="The gates to providers: budgets, pauses, the breaker.", no_args_is_help=True)

GateArgument = Annotated[
    str, typer.Argument(metavar="GATE", help="A gate, or a provider or account: then all gates below it.")
]
ByOption = Annotated[str | None, typer.Option("--by", help="Who does it, for the event log; else your user name.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say which gates, and change nothing.")]


@providers.command("list")
def list_(
    gate: Annotated[str | None, typer.Argument(metavar="GATE", help="Only this gate and those below it.")] = None,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """List the gates: open or why not, until when, what their budgets hold, who waits and who is inside."""
    from penstock.cli import show
    from penstock.ledger.gates.status import gate_statuses
    from penstock.ledger.store.database import present

    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found = database.read(lambda cursor: gate_statuses(database, cursor, counts=True))
        now = database.read(lambda cursor: present(database, cursor))
    chosen = [g for g in found if gate is None or _under(g.gate_id, gate)]
    if gate is not None and not chosen:
        raise _unknown(gate, [g.gate_id for g in found])
    if json:
        show.print_json(chosen)
    else:
        show.gates(chosen, now)


@providers.command("pause")
def pause(
    gate: GateArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is shown wherever the gate is.")],
    *,
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="Open again by itself after, say, 6h; else on resume.")
    ] = None,
    by: ByOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Let no more calls through. What is under way ends; what is due waits, and nobody is charged for it."""
    from penstock.ledger.ledger import Ledger
    from penstock.model.cadence import parse_span

    seconds = parse_span(span).total_seconds() if span else None
    setup = settle(config, {"ledger.url": ledger})
    url = setup.url
    below = _below(url, gate, opened=False, ahead=[p.name for p in setup.config.providers()])
    if not dry_run:
        with Ledger.open(url) as opened:
            if seconds is None:
                opened.gates.pause(gate, _operator(by), reason)
            else:
                for name in below or [gate]:
                    opened.gates.close(name, seconds, f"paused by {_operator(by)}: {reason}")
    _told("would pause" if dry_run else "paused", below or [gate], json=json)


@providers.command("resume")
def resume(
    gate: GateArgument,
    *,
    by: ByOption = None,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Open gates whatever closed them: a pause, a fatal error, a throttle, the breaker. Their budgets begin empty."""
    from penstock.ledger.ledger import Ledger

    url = settle(config, {"ledger.url": ledger}).url
    below = _below(url, gate, opened=True)
    if not dry_run:
        with Ledger.open(url) as opened:
            opened.gates.resume(gate, _operator(by))
    _told("would resume" if dry_run else "resumed", below, json=json)


def _below(url: str, gate: str, *, opened: bool, ahead: Sequence[str] = ()) -> list[str]:
    """The gates of that name and below, or those of them that are to be `opened`; `ahead` may have none yet."""
    from penstock.cli import show
    from penstock.ledger.gates.status import gate_statuses

    with show.reading(url) as database:
        found = database.read(lambda cursor: gate_statuses(database, cursor))
    chosen = [g for g in found if _under(g.gate_id, gate)]
    if not chosen and gate not in ahead:
        raise _unknown(gate, [*(g.gate_id for g in found), *ahead])
    return [g.gate_id for g in chosen if not opened or g.state != "open"]


def _under(gate_id: str, prefix: str) -> bool:
    from penstock.model.limits import GateLimits

    return GateLimits(prefix).covers(gate_id)


def _unknown(gate: str, known: list[str]) -> Exception:
    import difflib

    from penstock.model.errors import UsageError

    near = difflib.get_close_matches(gate, known, 3) or known[:3]
    hint = (
        f"; there is {', '.join(near)}" if near else "; there is none yet: gates are made when a unit first needs one"
    )
    return UsageError(f"no gate is called {gate!r}{hint}")


def _operator(by: str | None) -> str:
    return f"operator:{by or user()}"


def _told(what: str, gates: list[str], *, json: bool) -> None:
    from penstock.cli import show

    if json:
        show.print_json({"action": what, "gates": gates})
    else:
        echo(f"{what} {len(gates):,} gate{'s' if len(gates) != 1 else ''}" + "".join(f"\n  {g}" for g in gates[:20]))
