"""Google's side of `connectors.google_sheets`: tokens for a service account, and spreadsheets, in one ASGI application.

Time is the clock's: tokens expire, and quotas are of a minute. Trouble is asked for: `faults` for the next calls of an
operation, `every` for every Nth call, `lost` for the answer to the call of that number, which is carried out. What
people do to a spreadsheet is done to its grids. On a socket use `server.serving`, in process an ASGI transport.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.types import Receive, Scope, Send

from penstock.connectors.google_sheets.login import GRANT, SCOPE
from penstock.model.clock import EPOCH, Clock
from penstock.simulators.asgi import respond
from penstock.simulators.faults import Refused, Troubles
from penstock.simulators.google_grids import BadRequest, Grid, Spreadsheet, properties

SPREADSHEET = "simulated-spreadsheet"
EMAIL = "penstock@simulated.iam.gserviceaccount.com"
TOKEN_PATH = "/token"  # noqa: S105 - an address
READS, WRITES = ("tabs", "read"), ("write", "change")

_KEPT = 10_000
_PATH = re.compile(r"/v4/spreadsheets/([^/:?]+)(/values:batchGet|/values:batchUpdate|/values/[^?]+|:batchUpdate)?")
_OPERATIONS = {"/values:batchGet": "read", "/values:batchUpdate": "write", ":batchUpdate": "change"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_LATEST = 300.0
"""How far a signed assertion's time may be off, in seconds."""
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call instead of its answer. `cut` breaks the connection; `carried_out`: it is done first."""

    status: int = 500
    message: str = "Internal error encountered."
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    carried_out: bool = False


LOST = Fault(cut=True, carried_out=True)


def quota(kind: str = "Read", retry_after: str | None = None) -> Fault:
    """A 429: the requests of a minute are spent."""
    text = (
        f"Quota exceeded for quota metric '{kind} requests' and limit '{kind} requests per minute per user' of service"
        " 'sheets.googleapis.com' for consumer 'project_number:1'."
    )
    return Fault(429, text, () if retry_after is None else (("retry-after", retry_after),))


@functools.cache
def _key_pair() -> tuple[str, str]:
    """A private key and its public key as PEM, made once for each process."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    private = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = made.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


@dataclass(slots=True)
class GoogleSheetsSimulator(Troubles[Fault]):
    """An ASGI application with a memory. `per_minute`: how many reads, and how many writes, a minute of the clock has.

    `before` is called with each operation before it is carried out: what somebody does at that very moment.
    """

    clock: Clock
    email: str = EMAIL
    token_life: timedelta = timedelta(seconds=3_599)
    per_minute: int | None = None
    latency: float = 0.0
    spreadsheets: dict[str, Spreadsheet] = field(default_factory=lambda: {SPREADSHEET: Spreadsheet({EMAIL})})
    before: Callable[[str], object] = str
    #: Numbers of calls, from 1 on, whose answer is lost; logins do not count.
    lost: set[int] = field(default_factory=set)
    #: The operation of each call, and the path.
    requests: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    bodies: deque[Any] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _tokens: dict[str, datetime] = field(default_factory=dict)
    _spent: Counter[tuple[str, int]] = field(default_factory=Counter)
    _issued: int = 0
    _calls: int = 0

    def key(self, address: str) -> str:
        """The service account's key, as the JSON that Google gives."""
        return json.dumps(
            {
                "type": "service_account",
                "project_id": "simulated",
                "private_key_id": "simulated-key",
                "private_key": _key_pair()[0],
                "client_email": self.email,
                "client_id": "1",
                "token_uri": f"{address}{TOKEN_PATH}",
            }
        )

    def grid(self, title: str, spreadsheet: str = SPREADSHEET) -> Grid:
        """A tab, for hands and for eyes."""
        return self.spreadsheets[spreadsheet].grid(title)

    def expire_tokens(self) -> None:
        """Every token is refused from now on."""
        self._tokens.clear()

    def forget(self) -> None:
        """Begin to count anew, without any trouble."""
        for memory in (self.faults, self.every, self.lost, self.requests, self.bodies, self.counted):
            memory.clear()
        self._calls = 0

    def calls(self, operation: str) -> int:
        """How many calls of an operation there were: token, tabs, read, write or change."""
        return self.counted[operation]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self.answer, lambda: self.latency, scope, receive, send)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:
        """Status, headers and body. Raises ConnectionAbortedError where a fault asks for it."""
        place, _, query = path.partition("?")
        extra: tuple[tuple[str, str], ...] = ()
        try:
            status, document = 200, self._answered(method, place, query, headers, body)
        except Refused as refused:
            fault = refused.answered()
            status, extra = fault.status, fault.headers
            error = {"code": status, "message": fault.message, "status": _STATUSES.get(status, "UNKNOWN")}
            document = {"error": error}
            if place == TOKEN_PATH:
                document = {"error": "invalid_grant", "error_description": fault.message}
        content = json.dumps(document).encode()
        sent = (("content-type", "application/json; charset=UTF-8"), ("content-length", str(len(content))), *extra)
        return status, tuple((name.encode(), value.encode()) for name, value in sent), content

    def _answered(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> Any:
        if path == TOKEN_PATH:
            return self._carried_out("token", path, lambda: self._token(body))
        found = _PATH.fullmatch(path)
        if found is None:
            raise Refused(Fault(404, "Requested entity was not found."))
        sheet_id, rest = unquote(found[1]), found[2]
        operation = "tabs" if rest is None else _OPERATIONS.get(rest, "read")
        if method != ("POST" if operation in WRITES else "GET"):
            raise Refused(Fault(405, "Method not allowed."))

        def work() -> Any:
            self._meter(operation)
            self._admit(headers)
            spreadsheet = self._spreadsheet(sheet_id)
            self.before(operation)
            try:
                return self._done(operation, spreadsheet, rest or "", parse_qs(query), body)
            except BadRequest as error:
                raise Refused(Fault(400, str(error))) from None
            except (KeyError, TypeError, AttributeError, ValueError):
                raise Refused(Fault(400, "Invalid JSON payload received.")) from None

        self._calls += 1
        return self._carried_out(operation, path, work, lost=self._calls in self.lost)

    def _carried_out(self, operation: str, path: str, work: Callable[[], Any], *, lost: bool = False) -> Any:
        self.requests.append((operation, path))
        fault = self.trouble(operation) or (LOST if lost else None)
        if fault is None:
            return work()
        if fault.carried_out:
            work()
        raise Refused(fault)

    def _meter(self, operation: str) -> None:
        kind = "Write" if operation in WRITES else "Read"
        minute = int(self.clock.elapsed() // 60)
        self._spent[kind, minute] += 1
        if self.per_minute is not None and self._spent[kind, minute] > self.per_minute:
            raise Refused(quota(kind))

    def _token(self, body: bytes) -> Any:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        if form.get("grant_type") != GRANT:
            raise Refused(Fault(400, "Invalid grant_type"))
        claims = _verified(form.get("assertion", ""))
        now = (self.clock.now() - EPOCH).total_seconds()
        if claims is None:
            raise Refused(Fault(400, "Invalid JWT Signature."))
        if claims.get("iss") != self.email:
            raise Refused(Fault(400, "Invalid grant: account not found"))
        if not (abs(claims.get("iat", 0) - now) <= _LATEST and now < claims.get("exp", 0) <= claims["iat"] + 3_600):
            raise Refused(Fault(400, "Invalid JWT: Token must be a short-lived token (60 minutes)"))
        if claims.get("scope") != SCOPE or not str(claims.get("aud")).endswith(TOKEN_PATH):
            raise Refused(Fault(400, "Invalid JWT: scope or audience"))
        self._issued += 1
        token = f"ya29.simulated-sheets-{self._issued:06}"
        self._tokens[token] = self.clock.now() + self.token_life
        return {"access_token": token, "expires_in": int(self.token_life.total_seconds()), "token_type": "Bearer"}

    def _admit(self, headers: dict[str, str]) -> None:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if self._tokens.get(token, self.clock.now()) <= self.clock.now():
            raise Refused(Fault(401, "Request had invalid authentication credentials."))

    def _spreadsheet(self, sheet_id: str) -> Spreadsheet:
        found = self.spreadsheets.get(sheet_id)
        if found is None:
            raise Refused(Fault(404, "Requested entity was not found."))
        if self.email not in found.editors:
            raise Refused(Fault(403, "The caller does not have permission"))
        return found

    def _done(self, operation: str, sheet: Spreadsheet, rest: str, query: dict[str, list[str]], body: bytes) -> Any:
        if operation == "tabs":
            return {"sheets": [{"properties": properties(grid)} for grid in sheet.grids]}
        if operation == "read":
            one = rest.removeprefix("/values/") if rest.startswith("/values/") else None
            ranges = [unquote(one)] if one else query["ranges"]
            read = [_value_range(text, sheet) for text in ranges]
            return read[0] if one else {"spreadsheetId": "simulated", "valueRanges": read}
        asked = json.loads(body)
        self.bodies.append(asked)
        if operation == "write":
            return {"totalUpdatedCells": sheet.update(asked["data"], asked["valueInputOption"])}
        return {"replies": [sheet.change(one) for one in asked["requests"]]}


def _value_range(text: str, sheet: Spreadsheet) -> dict[str, Any]:
    """A range as it is read; without a key `values` where there is nothing."""
    grid, span = sheet.span(text)
    values = grid.read(span)
    return {"range": text, "majorDimension": "ROWS", **({"values": values} if values else {})}


def _verified(assertion: str) -> dict[str, Any] | None:
    """The claims of an assertion that our key has signed; None for any other."""
    from google.auth import crypt

    signed, _, signature = assertion.rpartition(".")
    header, _, claims = signed.partition(".")
    try:
        read = [json.loads(_decoded(part)) for part in (header, claims)]
        verifier: Any = crypt.RSAVerifier
        good = verifier.from_string(_key_pair()[1]).verify(signed.encode(), _decoded(signature))
    except (ValueError, binascii.Error):
        return None
    return read[1] if good and read[0].get("alg") == "RS256" and isinstance(read[1], dict) else None


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
