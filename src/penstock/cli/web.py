"""Serving the desk and the API: alone, or beside the worker of `penstock up`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from penstock.cli.setup import open_ledger
from penstock.model.errors import LedgerError, LedgerUnavailable, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from penstock.api.desk import Bound, Desk
    from penstock.app.process import Process
    from penstock.app.program import Program

log = structlog.get_logger()


def run_web(path: Path | None, given: Mapping[str, Any]) -> None:
    """Serve until stopped. Raises UsageError for an address that cannot be served on."""
    from penstock.api import serve
    from penstock.app.discover import load
    from penstock.observe.logs import configure_logs

    program = load(path, given)
    settings = program.configuration.kernel
    configure_logs(settings.log.level, settings.log.format)
    with serve.bind(settings.web.address) as listening:
        desk = _desk(lambda: program, serve.bound_to(listening, settings.web.address))
        _look_at_ledger(desk)
        serve.require_token(desk)
        application = made(desk)
        log.info("web.serving", address=_address(desk))
        serve.serve(application, listening)


def _look_at_ledger(desk: Desk) -> None:
    """A ledger that is away may come back; one that cannot be worked with is refused at once."""
    from penstock.app.process import refuse_hopeless

    try:
        desk.ledger()
    except LedgerUnavailable as error:
        refuse_hopeless(error)
        log.warning("web.waiting", error=str(error))


@contextlib.contextmanager
def beside(process: Process) -> Iterator[None]:
    """Serve while the process works. What keeps it from being served is told, and the work goes on without.

    It is tried again all the while: a token is made, and who had the address leaves.
    """
    from penstock.api import serve

    settings = process.program.configuration.kernel.web
    if not settings.enabled:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(serve.until_done(_Beside(process, settings.address, stack).begin))
        yield


class _Beside:
    """The desk of a process that works: served until the stack is left, as soon as nothing keeps it from that."""

    def __init__(self, process: Process, address: str, stack: contextlib.ExitStack) -> None:
        from penstock.api.desk import Bound

        self._address = address
        self._stack = stack
        self._desk = _desk(lambda: process.program, Bound.parse(address), process.counts)
        self._told = ""
        stack.callback(self._desk.close)

    def begin(self) -> bool:
        """Whether it is served now. What keeps it from that is told once."""
        from penstock.api import serve

        try:
            serve.require_token(self._desk)
            listening = self._stack.enter_context(serve.bind(self._address))
        except (UsageError, LedgerError) as error:
            if str(error) != self._told:
                log.warning("web.refused", address=self._address, error=str(error))
            self._told = str(error)
            return False
        self._desk.bound = serve.bound_to(listening, self._address)
        self._stack.enter_context(serve.serving(made(self._desk), listening))
        log.info("web.serving", address=_address(self._desk))
        return True


@contextlib.contextmanager
def watching(program: Program, address: str | None) -> Iterator[str]:
    """Serve a program whose work somebody else does; gives where. Without an address: the usual one, or a free port."""
    from penstock.api import serve

    usual = program.configuration.kernel.web.address
    try:
        listening = serve.bind(address or usual)
    except UsageError:
        if address is not None:
            raise
        listening = serve.bind(f"{usual.rpartition(':')[0]}:0")
    with listening:
        desk = _desk(lambda: program, serve.bound_to(listening, address or usual))
        serve.require_token(desk)
        with serve.serving(made(desk), listening):
            yield _address(desk)


def made(desk: Desk) -> Starlette:
    """The application: the API, and the pages."""
    from penstock.web.pages import make_desk

    return make_desk(desk)


def _desk(
    programs: Callable[[], Program],
    bound: Bound,
    counts: Callable[[], Mapping[str, Mapping[str, int]]] | None = None,
) -> Desk:
    from penstock.api.desk import Desk

    return Desk(programs, lambda: open_ledger(programs()), bound, counts=counts)


def _address(desk: Desk) -> str:
    return f"http://{desk.bound}{desk.root_path}/"
