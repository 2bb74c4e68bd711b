"""As much of S3 on loopback as a client of object stores asks for: objects, conditions, lists, uploads in parts."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "landed"


class S3:
    """One bucket. `broken` makes it answer everything with that status, `closed` does so for single objects."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        self.broken: int | None = None
        self.closed: dict[str, int] = {}
        self.address = ""
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: S3

    def _split(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        name = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        return name, {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            raise NotImplementedError
        return body

    def _handle(self) -> None:
        body = self._body()
        name, query = self._split()
        self.bucket.asked.append((self.command, name))
        with self.bucket.lock:
            broken = self.bucket.closed.get(name, self.bucket.broken)
            if broken is not None:
                self._answer(broken, b"<Error><Code>Broken</Code></Error>")
            else:
                getattr(self, f"_{self.command.lower()}")(name, query, body)

    def _creates(self) -> bool:
        """Whether it is to be created only if it is not there: as S3 asks for it, or Google."""
        return self.headers.get("If-None-Match") == "*" or self.headers.get("x-goog-if-generation-match") == "0"

    def _put(self, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploadId" in query:
            self.bucket.uploads[query["uploadId"]][int(query["partNumber"])] = body
        elif self._creates() and name in self.bucket.objects:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        elif "If-Match" in self.headers and name not in self.bucket.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        elif "If-Match" in self.headers and self.headers["If-Match"] != _tag(self.bucket.objects[name]):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        else:
            self.bucket.objects[name] = body
        self._answer(200, ETag=_tag(body))

    def _post(self, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            self.bucket.uploads[name] = {}
            what = "InitiateMultipartUploadResult"
            text = f"<{what}><UploadId>{escape(name)}</UploadId></{what}>"
        elif "uploadId" in query:
            parts = self.bucket.uploads.pop(query["uploadId"])
            self.bucket.objects[name] = b"".join(parts[n] for n in sorted(parts))
            tag = escape(_tag(self.bucket.objects[name]))
            text = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
        else:
            keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for key in keys:
                self.bucket.objects.pop(key, None)
            gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            text = f"<DeleteResult>{gone}</DeleteResult>"
        self._answer(200, text.encode())

    def _get(self, name: str, query: dict[str, str], body: bytes) -> None:
        if "list-type" in query:
            self._list(query)
        elif name not in self.bucket.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            found = self.bucket.objects[name]
            self._answer(200, found, ETag=_tag(found), Last_Modified=_http_now(), Content_Type="text/plain")

    def _head(self, name: str, query: dict[str, str], body: bytes) -> None:
        if name not in self.bucket.objects:
            self._answer(404)
            return
        found = self.bucket.objects[name]
        self._answer(200, ETag=_tag(found), Last_Modified=_http_now(), Content_Length=str(len(found)))

    def _delete(self, name: str, query: dict[str, str], body: bytes) -> None:
        self.bucket.objects.pop(name, None)
        self._answer(204)

    def _list(self, query: dict[str, str]) -> None:
        names = sorted(key for key in self.bucket.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", 0))
        some = names[start : start + 3]  # little at a time, so that lists go on
        more = start + len(some) < len(names)
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found = "".join(
            f"<Contents><Key>{escape(quote(key) if query.get('encoding-type') else key)}</Key>"
            f"<LastModified>{moment}</LastModified><ETag>{escape(_tag(self.bucket.objects[key]))}</ETag>"
            f"<Size>{len(self.bucket.objects[key])}</Size></Contents>"
            for key in some
        )
        token = f"<NextContinuationToken>{start + len(some)}</NextContinuationToken>" if more else ""
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{found}</ListBucketResult>"
        self._answer(200, text.encode())

    do_PUT = do_POST = do_GET = do_HEAD = do_DELETE = _handle  # noqa: N815 - the server's own names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """It is quiet."""


@contextlib.contextmanager
def s3() -> Iterator[S3]:
    made = S3()

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": made}))
    server.daemon_threads = True
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def _http_now() -> str:
    return datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
