"""A loopback HTTP server that tells everything it was told: the worst that a provider can do with a secret."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Echo:
    """Answers `/orders/429` with that status and the request's headers and path; `/orders/cut` with nothing."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.address = ""


@contextlib.contextmanager
def echo() -> Iterator[Echo]:
    made = Echo()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            way = self.path.partition("?")[0].rpartition("/")[2]
            headers = dict(self.headers)
            made.requests.append((way, headers))
            said = self.rfile.read(int(headers.get("Content-Length", 0))).decode()
            if way == "cut":
                self.close_connection = True
                return
            body = json.dumps({"path": self.path, "headers": headers, "body": said}).encode()
            self.send_response(int(way))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """It is quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
