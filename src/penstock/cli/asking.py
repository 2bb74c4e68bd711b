"""Asking a reading, and showing its answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from penstock.cli import render, terminal
from penstock.cli.setup import LedgerReader, load_program, require_on, user
from penstock.model.inert import inert
from penstock.operations.answers import json_text
from penstock.operations.declare import Lines, Page

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.app.program import Program
    from penstock.cli.declared import Wishes
    from penstock.operations.declare import Reading
    from penstock.operations.fields import Parameters

_OTHERS = {"busy": "hold", "closed": "hold", "half-open": "hold", "stopped": "fault", "parked": "fault"}
"""What is no state of a machine: how a gate is, and what is parked."""


def ask(lifecycle: AnyLifecycle, reading: Reading[Any], parameters: Parameters, wishes: Wishes) -> int:
    """Answer on standard output. Returns the exit code: 1 where the answer has `failed` and it is true."""
    program = load_program(wishes.config, wishes.ledger)
    require_on(program, lifecycle)
    reader = LedgerReader(program)
    try:
        with terminal.progress("reading", program.clock, quiet=wishes.json or wishes.csv) as progress:
            asked = program.ask(lifecycle, reader, program.clock.now(), who=user(), progress=progress)
            answer = reading(asked, parameters)
        _show(answer, reading, wishes, program)
    finally:
        reader.close()
    return int(getattr(answer, "failed", False) is True)


def _show(answer: Any, reading: Reading[Any], wishes: Wishes, program: Program) -> None:
    if isinstance(answer, Lines):
        on_terminal = sys.stdout.isatty()
        for line in answer.lines:
            sys.stdout.write(f"{inert(line, lines=True) if on_terminal else line}\n")
    elif wishes.csv and not wishes.json and isinstance(answer, Page):
        from penstock.cli.declared import row_of

        for line in render.csv_lines(answer, row_of(reading), safe=sys.stdout.isatty()):
            sys.stdout.write(f"{line}\n")
    else:
        show_answer(answer, program, json=wishes.json)


def show_answer(answer: Any, program: Program, *, json: bool) -> None:
    """A page or a struct on standard output: for people, or as exact JSON."""
    if json:
        sys.stdout.write(f"{json_text(answer)}\n")
    else:
        screen = terminal.Screen.of_output()
        terminal.write(render.answer_lines(answer, render.Showing(screen, program.clock.now(), meanings(program))))
        # In a pipe they are for whoever watches, and no rows.
        terminal.write(render.notes(answer, screen.width), err=screen.width is None)


def meanings(program: Program) -> render.Meaning:
    """What a state means, by its machine; without one, where all machines that have it agree."""

    def find(machine: str | None, state: str) -> str | None:
        owners = [one for one in program.app.machines if machine in (None, one.name)]
        found = {str(own.meaning) for one in owners for own in one.status if own == state}
        return found.pop() if len(found) == 1 else _OTHERS.get(state)

    return find
