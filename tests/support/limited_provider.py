"""A provider on loopback HTTP that keeps a token bucket, refuses what overflows it, and remembers every arrival."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Arrival:
    at: float
    gate: str
    name: str
    refused: bool


class LimitedProvider:
    """`POST /<gate>/<name>` is one call. What it does with the next ones is set by the test."""

    def __init__(self, rate: float | None = None, burst: float = 1.0) -> None:
        self.address = ""
        self.arrivals: list[Arrival] = []
        self.most_at_once: Counter[str] = Counter()
        #: How long each call takes.
        self.seconds = 0.0
        #: Refuse everything: the value of Retry-After, or "" for none.
        self.refusing: str | None = None
        #: Calls that arrive wait until it is set.
        self.answering = threading.Event()
        self.answering.set()
        self._rate, self._burst = rate, burst
        self._level, self._filled = burst, time.monotonic()
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def inside(self) -> int:
        """How many calls are being answered."""
        return sum(self._inside.values())

    @property
    def refused(self) -> int:
        return sum(a.refused for a in self.arrivals)

    def names(self, gate: str | None = None) -> list[str]:
        return [a.name for a in self.arrivals if gate in (None, a.gate)]

    def between(self, start: float, end: float) -> int:
        return sum(start <= a.at <= end for a in self.arrivals)

    def answer(self, gate: str, name: str) -> str | None:
        """None: taken. Otherwise the value of Retry-After."""
        with self._lock:
            now = time.monotonic()
            over = False
            if self._rate is not None:
                self._level = min(self._burst, self._level + (now - self._filled) * self._rate)
                self._filled = now
                over = self._level < 1
                self._level -= not over
            refusing = self.refusing if self.refusing is not None else ("1" if over else None)
            self.arrivals.append(Arrival(now, gate, name, refusing is not None))
            self._inside[gate] += 1
            self.most_at_once[gate] = max(self.most_at_once[gate], self._inside[gate])
        try:
            self.answering.wait(60)
            time.sleep(self.seconds)
        finally:
            with self._lock:
                self._inside[gate] -= 1
        return refusing


@contextlib.contextmanager
def limited_provider(rate: float | None = None, burst: float = 1.0) -> Iterator[LimitedProvider]:
    made = LimitedProvider(rate, burst)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            gate, _, name = self.path.strip("/").rpartition("/")
            refused = made.answer(gate, name)
            with contextlib.suppress(OSError):  # whoever asked may have been killed
                self.send_response(200 if refused is None else 429)
                if refused:
                    self.send_header("Retry-After", refused)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """It is quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A caller that was killed is no error of ours."""

    server = Server(("127.0.0.1", 0), Handler)
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.answering.set()
        server.shutdown()
        server.server_close()
        thread.join()
