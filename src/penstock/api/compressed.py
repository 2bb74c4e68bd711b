"""What is asked for by GET goes out as gzip, where who asks takes that.

The length of what is compressed tells something of it (BREACH): who can make a browser ask for a page with words of
their choice, and can see how long the answers are, guesses what else is on the page. So no secret stands in what is
compressed. The CSRF token is masked anew in every page (`masked`), and a token that is shown once is in the answer to a
POST, which is left as it is. For the rest, no other site makes a browser ask as the person who signed in: the cookie is
`SameSite=Strict`.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

if TYPE_CHECKING:
    from starlette.requests import Request

Endpoint = Callable[["Request"], Awaitable[Response]]
_LEAST = 1_000
_LONG = 100_000
"""From so many bytes on it would take milliseconds, for which all others wait: what is so long is packed less well."""
_TYPES = ("text/html", "text/css", "text/javascript", "text/plain", "image/svg+xml", "application/json")
_GZIP = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE)


def takes_gzip(request: Request) -> bool:
    """Whether who asks can read it."""
    return request.method == "GET" and _GZIP.search(request.headers.get("accept-encoding", "")) is not None


def compressed(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with answers that are worth it compressed."""

    @wraps(endpoint)
    async def answered(request: Request) -> Response:
        answer = await endpoint(request)
        plain = not isinstance(answer, StreamingResponse) and "content-encoding" not in answer.headers
        if not plain or len(answer.body) < _LEAST or not (answer.media_type or "").startswith(_TYPES):
            return answer
        answer.headers.add_vary_header("Accept-Encoding")
        if takes_gzip(request):
            answer.body = _packed(bytes(answer.body))
            answer.headers["Content-Encoding"] = "gzip"
            answer.headers["Content-Length"] = str(len(answer.body))
        return answer

    return answered


def _packed(body: bytes) -> bytes:
    return gzip.compress(body, 6 if len(body) < _LONG else 1, mtime=0)
