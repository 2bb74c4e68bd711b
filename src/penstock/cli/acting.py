"""Doing an operation: plan, show, ask, plan again, carry out, and say what came of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.setup import load_program, open_ledger, require_on, user
from penstock.cli.terminal import echo
from penstock.model.clock import Rng
from penstock.model.errors import UsageError
from penstock.model.spoken import counted
from penstock.model.unit import Ref
from penstock.operations.answers import json_text
from penstock.operations.carry import Done, Planned, Preview, carry_out, check_digest, make_plan
from penstock.operations.reader import Reader

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.app.program import Program
    from penstock.cli.declared import Wishes
    from penstock.ledger.ledger import Ledger
    from penstock.operations.declare import Ask, Operation
    from penstock.operations.fields import Parameters
    from penstock.operations.plan import Follow

_SHOWN = 10
_CHANGED = "it changed since it was looked at"
_NOBODY = "there is no terminal to ask on; give --yes, or --dry-run to only look"


@dataclass(frozen=True, slots=True)
class _Act:
    """One operation on its way."""

    program: Program
    lifecycle: AnyLifecycle
    operation: Operation[Any]
    parameters: Parameters
    wishes: Wishes
    ledger: Ledger
    #: One for both plans: that which is shown and that which is carried out.
    request: str = field(default_factory=lambda: str(Rng().uuid()))

    def asked(self, progress: terminal.Progress | None = None) -> Ask[Any]:
        reader = Reader(self.ledger.database, self.program.app.machines, self.program.app.past)
        who = self.wishes.by or user()
        # A dry run writes nothing into the history, so it needs no reason of its own.
        reason = self.wishes.reason or ("dry run" if self.wishes.dry_run else "")
        wanted = {"who": who, "reason": reason, "request": self.request}
        return self.program.ask(self.lifecycle, reader, self.program.clock.now(), progress=progress, **wanted)

    def planned(self, ask: Ask[Any]) -> Planned:
        version = self.program.configuration.version
        return make_plan(self.operation, ask, self.parameters, owner=self.lifecycle.name, version=version)


def act(lifecycle: AnyLifecycle, operation: Operation[Any], parameters: Parameters, wishes: Wishes) -> int:
    """Returns the exit code: 1 where something was to be done and nothing was."""
    program = load_program(wishes.config, wishes.ledger)
    require_on(program, lifecycle)
    with open_ledger(program) as ledger:
        return _act(_Act(program, lifecycle, operation, parameters, wishes, ledger))


def _act(one: _Act) -> int:
    wishes, quiet = one.wishes, one.wishes.json
    with terminal.progress("looking", one.program.clock, quiet=quiet) as progress:
        ask = one.asked(progress)
        planned = one.planned(ask)
    check_digest(planned, wishes.digest)
    if wishes.dry_run or not planned.preview.count:
        if quiet:
            print_json(planned.preview)
        else:
            show_preview(planned.preview)
        return 0
    if not wishes.yes and not getattr(planned.plan, "harmless", False):
        if quiet or not terminal.can_ask():
            raise UsageError(f"this would {planned.preview.says}; {_NOBODY}")
        show_preview(planned.preview)
        terminal.agree("go on?")
        seen = planned.preview.digest
        ask = one.asked()
        planned = one.planned(ask)
        check_digest(planned, seen)
    elif not quiet:
        _warn(planned.preview.warnings)
    with terminal.progress(planned.preview.says, one.program.clock, quiet=quiet) as progress:
        done = carry_out(one.ledger, ask, planned, progress)
    follow = getattr(planned.plan, "follow", None)
    if follow is not None:
        return _follow(one, planned.preview.says, follow)
    if done.action is not None:
        done = _go_on(one, done)
    if quiet:
        print_json(done)
    else:
        _say_done(done, planned.preview.count)
    return 0 if done.count else 1


def _follow(one: _Act, says: str, wanted: Follow) -> int:
    """Work on the unit until it has come far enough, beside a worker that does so too or alone; then show it.

    Returns the exit code: 1 where it is parked, or the answer has `failed` and it is true.
    """
    from penstock.cli.asking import show_answer
    from penstock.observe.logs import configure_logs
    from penstock.operations.follow import follow

    # The worker inside is this command's own: what it says of its start and its end is nobody's concern.
    configure_logs("error")
    program, ledger = one.program, one.ledger
    ledger.gates.providers = program.limits()
    flows = program.flows_of(program.app.owner(wanted.worked or wanted.ref.machine))
    try:
        with terminal.progress(says, program.clock, quiet=one.wishes.json) as progress:

            def until(unit: Any) -> bool:
                progress(*wanted.how_far(ledger, unit))
                return wanted.until(unit)

            version = program.configuration.version
            unit = follow(ledger, flows, wanted.ref, until, worked=wanted.worked, config_version=version)
    except KeyboardInterrupt:
        echo(f"{wanted.ref} is not ready: a worker goes on with it", err=True)
        raise
    parked = getattr(unit, "parked_at", None) is not None
    if parked:
        echo(f"{wanted.ref} is parked: {getattr(unit, 'parked_reason', None)}", err=True)
        echo(f"to go on:    penstock units unpark {wanted.ref} --reason TEXT", err=True)
    answer = wanted.show(one.asked())
    show_answer(answer, program, json=one.wishes.json)
    return int(parked or getattr(answer, "failed", False) is True)


def _go_on(one: _Act, done: Done) -> Done:
    """Work on the bulk action until it has ended; beside a worker that does so too, or alone."""
    import msgspec

    from penstock.observe.logs import configure_logs
    from penstock.operations.bulk.actions import drive, results

    # The worker inside is this command's own: what it says of its start and its end is nobody's concern.
    configure_logs("error")
    assert done.action is not None  # noqa: S101 - only then
    quiet = one.wishes.json
    if not quiet:
        echo(f"{done.action} is under way: {done.says}", err=True)
        echo(f"to watch it: penstock bulk show {_key(done)}", err=True)
        echo(f"to end it:   penstock bulk cancel {_key(done)} --reason TEXT", err=True)
    try:
        with terminal.progress(done.says, one.program.clock, quiet=quiet) as progress:
            version = one.program.configuration.version
            action = drive(one.ledger, Ref.parse(done.action), progress, config_version=version)
    except KeyboardInterrupt:
        echo(f"{done.action} has not ended; a worker goes on with it", err=True)
        raise
    if action.parked_at is not None:
        echo(f"{done.action} is parked: {action.parked_reason}", err=True)
        echo(f"to go on:    penstock units unpark {done.action} --reason TEXT", err=True)
    moved, left = results(one.ledger, action.action_id)
    skipped = {**done.skipped}
    for why, count in left.items():
        said = _CHANGED if why == "changed since" else why
        skipped[said] = skipped.get(said, 0) + count
    state = "parked" if action.parked_at is not None else str(action.status)
    ended = "" if state == "done" else f" ({state})"
    return msgspec.structs.replace(done, count=done.count + moved, skipped=skipped, says=f"{done.says}{ended}")


def _key(done: Done) -> str:
    return str(done.action).partition(":")[2]


def print_json(value: Any) -> None:
    sys.stdout.write(f"{json_text(value)}\n")


def show_preview(preview: Preview) -> None:
    """What would be done, on standard output: it may be long."""
    if preview.count:
        echo(f"this would {preview.says}")
    else:
        echo("there is nothing to do")
    for ref in preview.sample[:_SHOWN]:
        echo(f"  {ref}")
    if preview.sample and preview.count > len(preview.sample[:_SHOWN]):
        echo(f"  and {preview.count - len(preview.sample[:_SHOWN]):,} more")
    _say_skipped(preview.skipped, preview.skipped_sample)
    if preview.bulk:
        echo("it becomes a bulk action, which can be watched and cancelled")
    _warn(preview.warnings)
    if preview.count:
        echo(f"digest {preview.digest}")


def _warn(warnings: list[str]) -> None:
    screen = terminal.Screen.of_output()
    for line in warnings:
        echo(f"warning: {line}", err=screen.width is None)


def _say_done(done: Done, planned: int) -> None:
    if done.count:
        echo(f"done: {done.says}" + ("" if done.count == planned else f" ({done.count:,} of {planned:,} changed)"))
    else:
        echo("nothing was changed")
    _say_skipped(done.skipped, done.skipped_sample)
    if done.secret is not None:
        echo(f"{done.secret}\nkeep it now: it is not shown again")


def _say_skipped(skipped: Mapping[str, int], sample: Mapping[str, str]) -> None:
    """Why units are left as they are: a line for each reason, with how many and the first of them."""
    for reason, count in sorted(skipped.items(), key=lambda one: (-one[1], one[0])):
        first = next((ref for ref, why in sample.items() if why == reason), None)
        named = "" if first is None else f" ({first})" if count == 1 else f" ({first}, …)"
        echo(f"skipped {counted(count, 'unit')}: {reason}{named}")
