"""`penstock harvest reprice` and `reopen`: what consolidation came to, done once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.harvest import RunArgument, harvest, open_ledger, say
from penstock.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    LedgerOption,
    ReasonOption,
    YesOption,
    agree,
    echo,
    user,
)

if TYPE_CHECKING:
    from penstock.lifecycles.harvest.reprice import Preview


@harvest.command("reprice")
def reprice(
    feed: Annotated[str, typer.Argument(metavar="FEED", help="The feed.")],
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    reason: ReasonOption = "repriced by hand",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Price a feed's records by the rules in force, without waiting for its schedule; first say what would change."""
    from penstock.cli import show
    from penstock.lifecycles.harvest import operate
    from penstock.lifecycles.harvest.reprice import preview
    from penstock.lifecycles.harvest.repricing import Priced

    with open_ledger(config, ledger) as opened:
        operate.require_feed(opened, feed)
        found = preview(opened, Priced(feed))
        done = None
        if not json:
            _show(found)
        if found.stale and not dry_run:
            agree(f"price {found.stale:,} records of {feed} again, and change {found.changed:,} prices", yes=yes)
            done = operate.reprice(opened, feed, who=user(), reason=reason)
    if json:
        show.print_json({**show.fields(found), "dry_run": dry_run, "says": done and done.says})
    elif done is not None:
        echo(done.says)


def _show(found: Preview) -> None:
    from penstock.cli import show

    if not found.stale:
        echo(f"all {found.records:,} records of {found.feed} are priced by the {found.rules} rules in force")
        return
    echo(
        f"{found.feed}: {found.stale:,} of {found.records:,} records were priced by other rules than the"
        f" {found.rules} in force; {found.changed:,} prices would change"
    )
    if found.unpriced:
        echo(f"{found.unpriced:,} keep their price, because none can be made; the first: {found.why_not}")
    if found.sample:
        show.table(
            ["record", ">price", ">would be", ">rule", ">would be"],
            [
                (c.record, f"{c.before:,}", f"{c.after:,}", str(c.rule_before or "-"), str(c.rule_after or "-"))
                for c in found.sample
            ],
        )


@harvest.command("reopen")
def reopen(
    run: RunArgument,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    reason: ReasonOption = "reopened by hand",
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Have the failed chunks of a run that is still consolidating tried again, before it has failed for them."""
    from penstock.lifecycles.harvest import operate

    with open_ledger(config, ledger) as opened:
        say(operate.reopen(opened, run, who=user(), reason=reason, dry_run=dry_run), json=json)
