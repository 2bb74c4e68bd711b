"""A worker that was stopped past its lease makes none of the calls that it was about to make: others have made them."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.ledger.store.database import Cursor
from penstock.model.errors import LedgerBusy
from tests.support.crash_app import SERVER, Kind, S
from tests.support.fleet import Fleet, until

Call = tuple[str, int]


class Server(ThreadingHTTPServer):
    request_queue_size = 500
    daemon_threads = True


@contextmanager
def listening() -> Iterator[tuple[str, list[Call]]]:
    """A server of the test's own: its address, and which call came from which process, in order."""
    calls: list[Call] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            calls.append((self.path[1:], json.loads(body)["pid"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", calls
        server.shutdown()


def test_no_call_leaves_after_a_pause_that_was_longer_than_the_lease(ledger_url, tmp_path, monkeypatch):
    names = [f"{n:03}" for n in range(200)]
    # It is chance whether it looks at its lease before its steps go on: once a second, and at each renewal.
    # Here it does neither.
    with listening() as (address, calls), Fleet(ledger_url, tmp_path / "fleet", watch_seconds=60) as fleet:
        monkeypatch.setenv(SERVER, address)
        fleet.born(*names, kind=Kind.CALL, before_ms=2_500)
        (sleeper,) = fleet.start()
        until(lambda: len(list((fleet.folder / "begun").iterdir())) == len(names), "every step is about to call")
        sleeper.signal(signal.SIGSTOP)
        fleet.settings["watch_seconds"] = 0.2
        (other,) = fleet.start()
        fleet.finish()
        before = set(calls)
        late = {name for name, pid in before if pid == other.pid}
        assert late, "the other worker made calls that the first was about to make"

        def wake_up(cursor: Cursor) -> bool:
            """While it cannot ask the ledger whether its lease was taken away, it has only its own clock to go by."""
            if ledger_url.startswith("postgres"):
                cursor.run("LOCK TABLE worker IN ACCESS EXCLUSIVE MODE")
            sleeper.signal(signal.SIGCONT)
            time.sleep(3)
            return True

        def woken() -> bool:
            """It may have been stopped in a transaction: its locks go when the server ends that."""
            try:
                return fleet.ledger.database.write(wake_up)
            except LedgerBusy:
                return False

        until(woken, "the sleeper is woken while the ledger is locked")
        assert set(calls) == before, "nothing has left"
        until(lambda: len(sleeper.said("worker.started")) == 2, "the sleeper goes on under a fresh id")
        other.signal(signal.SIGTERM)
        assert other.wait() == 0
        fleet.born("next", kind=Kind.CALL)
        until(lambda: fleet.job("next").status is S.DONE, "the sleeper works again")
        assert set(calls) - before == {("next", sleeper.pid)}, "nothing else has left"
        assert sleeper.said("worker.lease_lost")
        fleet.stop()
        fleet.audit([*names, "next"], twice=True)
