"""The other side of the example: a small accounting API that fails the way real ones do.

Seeded: it answers some calls with 503, throttles some with 429 and Retry-After, accepts some and loses the answer, and
rejects an invoice whose amount is negative. An invoice that it stored it stores once; `duplicates` counts the calls
that tried to store it again.
"""

from __future__ import annotations

import json

from starlette.types import Receive, Scope, Send

from penstock.model.clock import Rng


class InvoiceServer:
    """An ASGI application with a memory."""

    def __init__(self, rng: Rng, *, trouble: float = 0.3) -> None:
        self._rng = rng
        self._trouble = trouble
        self.stored: dict[tuple[str, str], str] = {}
        self.calls = 0
        self.duplicates = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.calls += 1
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, headers, answer = self._answer(scope["method"], scope["path"], body)
        raw = [(b"content-type", b"application/json"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], object]:
        parts = path.strip("/").split("/")
        if method == "GET" and len(parts) == 3 and parts[0] == "invoices":  # noqa: PLR2004 - invoices/tenant/number
            found = self.stored.get((parts[1], parts[2]))
            return (200, [], {"id": found}) if found else (404, [], {"error": "no such invoice"})
        if method != "POST" or parts != ["invoices"]:
            return 404, [], {"error": "unknown path"}
        luck = self._rng.uniform(0, 1) / self._trouble if self._trouble else 1.0
        if luck < 1 / 3:
            return 503, [], {"error": "down for a moment"}
        if luck < 1 / 2:
            return 429, [(b"retry-after", b"1")], {"error": "too fast"}
        return self._store(json.loads(body), lose_answer=luck < 1)

    def _store(self, invoice: dict[str, object], *, lose_answer: bool) -> tuple[int, list[tuple[bytes, bytes]], object]:
        if int(str(invoice["amount_minor"])) < 0:
            return 422, [], {"error": "an invoice cannot be negative"}
        key = (str(invoice["tenant"]), str(invoice["number"]))
        if key in self.stored:
            self.duplicates += 1
        remote_id = self.stored.setdefault(key, f"inv-{len(self.stored) + 1}")
        # Stored, and then the gateway gives up: the caller cannot know.
        return (504, [], {"error": "gateway timeout"}) if lose_answer else (201, [], {"id": remote_id})
