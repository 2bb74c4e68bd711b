"""Tokens: who may use the API and the desk from afar, as what, and until when."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from penstock.model.clock import instant, instant_text
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.outcome import Event, Write
from penstock.model.secrets import Drawn, same
from penstock.operations.declare import Ask, Page, Role, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import Then
from penstock.operations.plan import Issue, Together
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor, Database

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_COLUMNS = "id, name, role, hash, created_at, created_by, expires_at, revoked_at"
PAST = {
    "token": (
        "SELECT id, name, role, hash, created_at, created_by, expires_at,"
        " CASE WHEN revoked_at <= {at} THEN revoked_at END AS revoked_at,"
        " CASE WHEN revoked_at <= {at} THEN revoked_by END AS revoked_by FROM {table} WHERE created_at <= {at}"
    )
}
"""How tokens stood at a moment: none is ever removed."""


class Token(NamedTuple):
    """A token as the ledger keeps it."""

    id: str
    name: str
    role: Role
    hash: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None

    def state(self, now: datetime) -> str:
        """valid, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if now < self.expires_at else "expired"


class TokenWanted(Parameters, frozen=True):
    name: Annotated[str, argument("Who it is for; the history names them by it.", example="grafana")]
    role: Annotated[
        Literal["viewer", "operator", "admin"], option("What it allows: to look, to act, or to give out tokens too.")
    ]
    expires: Annotated[timedelta, option("How long it is valid.", example="90d")] = timedelta(days=90)


class TokenNamed(Parameters, frozen=True):
    name: Annotated[str, argument("The token, by its name or its id.", example="grafana")]


class TokenRow(Row, frozen=True):
    name: Annotated[str, column("Who it is for.", show="reference")]
    role: Annotated[str, column("What it allows.")]
    state: Annotated[str, column("valid, expired or revoked.")]
    expires_at: Annotated[datetime, column("Until when it is valid.", heading="expires")]
    created_at: Annotated[datetime, column("When it was given out.", heading="created")]
    created_by: Annotated[str, column("Who gave it out.", heading="by")]
    revoked_at: Annotated[datetime | None, column("When it was revoked.", show="detail")]
    id: Annotated[str, column("Its id, the part after 'pst_'.", show="detail")]


@reading("token list", "Tokens: who may come in from afar, and until when.", role=Role.ADMIN)
def list_tokens(ask: Ask[KernelSettings], wanted: Then) -> Page[TokenRow]:
    """What a token is made of is shown once, when it is created; the ledger keeps a hash of it."""
    ask = ask.then(wanted.at)
    found = _all(ask)
    rows = [
        TokenRow(
            name=one.name,
            role=one.role,
            state=one.state(ask.now),
            expires_at=one.expires_at,
            created_at=one.created_at,
            created_by=one.created_by,
            revoked_at=one.revoked_at,
            id=one.id,
        )
        for one in found
    ]
    return Page(rows=rows, note=None if rows else "no tokens; 'penstock token create NAME --role viewer' makes one")


@operation("token create", "Give out a token; it is shown once.", role=Role.ADMIN, wants_reason=False)
def create(ask: Ask[KernelSettings], wanted: TokenWanted) -> Issue:
    """Whoever has it may call the API and sign in at the desk, under its name. Only a hash of it is kept."""
    from penstock.operations.access_tables import token

    if not _NAME.fullmatch(wanted.name):
        raise UsageError(f"{wanted.name!r:.100} cannot name a token; write letters, digits and . _ @ -, 64 at most")
    if not timedelta(0) < wanted.expires <= timedelta(days=3_660):
        raise UsageError("a token is valid for some time, and for ten years at most; choose another end")

    def check(cursor: Cursor) -> None:
        """Two who were shown the same plan are not both given a token."""
        if any(one.state(ask.now) == "valid" for one in _found(cursor, " WHERE name = :name", name=wanted.name)):
            raise UsageError(f"there is a valid token for {wanted.name!r}; revoke it, or choose another name")

    ask.reader.database.read(check)
    return Issue(
        token,
        {"name": wanted.name, "role": wanted.role, "created_by": ask.who},
        {"created_at": timedelta(0), "expires_at": wanted.expires},
        f"give out a token for {wanted.name}, as {wanted.role}",
        event="token.created",
        check=check,
    )


@operation("token revoke", "Make a token invalid at once, and end its sessions.", role=Role.ADMIN, wants_reason=False)
def revoke(ask: Ask[KernelSettings], wanted: TokenNamed) -> Together:
    from penstock.operations.access_tables import token

    found = [one for one in _all(ask) if wanted.name in (one.name, one.id) and one.revoked_at is None]
    if not found:
        raise UnknownUnit(f"no token that could be revoked is called {wanted.name!r:.100}; see 'penstock token list'")
    rows: list[dict[str, Any]] = [
        {**one._asdict(), "role": str(one.role), "revoked_at": ask.now, "revoked_by": ask.who} for one in found
    ]
    events = [
        Event(f"token.revoked:{one.id}", "token.revoked", {"token": one.name, "role": str(one.role), "by": ask.who})
        for one in found
    ]
    return Together(f"revoke the token of {found[0].name}", writes=[Write(token, rows, "update")], events=events)


READINGS = [list_tokens]
OPERATIONS = [create, revoke]


def _all(ask: Ask[Any]) -> list[Token]:
    """Every token, by name, the newest first."""
    found = ask.reader.database.read(lambda cursor: _found(cursor, ""))
    return sorted(sorted(found, key=lambda one: one.created_at, reverse=True), key=lambda one: one.name)


def _found(cursor: Cursor, where: str, **values: Any) -> list[Token]:
    rows = cursor.rows(f"SELECT {_COLUMNS} FROM token{where}", **values)
    return [
        Token(str(a), str(b), Role(c), str(d), instant(e), str(f), instant(g), instant(h))
        for a, b, c, d, e, f, g, h in rows
    ]


def valid_token(database: Database, token_id: str, given: str, now: datetime) -> Token | None:
    """The token of that id, if that is the hash of its secret and it is valid now."""
    found = database.read(lambda cursor: _found(cursor, " WHERE id = :id", id=token_id))
    return next((one for one in found if same(one.hash, given) and one.state(now) == "valid"), None)


def any_valid(database: Database, now: datetime) -> bool:
    """Whether anybody could come in."""
    return any(one.state(now) == "valid" for one in database.read(lambda cursor: _found(cursor, "")))


# -- sessions


def begin_session(database: Database, token: Token, drawn: Drawn, *, ends: datetime, now: datetime) -> None:
    """A browser has signed in with that token. Sessions that are over are forgotten on the way."""

    def work(cursor: Cursor) -> None:
        cursor.run("DELETE FROM web_session WHERE expires_at < :now", now=instant_text(now))
        cursor.run(
            "INSERT INTO web_session (id, token_id, hash, created_at, expires_at)"
            " VALUES (:id, :token, :hash, :now, :ends)",
            id=drawn.id,
            token=token.id,
            hash=drawn.hash,
            now=instant_text(now),
            ends=instant_text(ends),
        )

    database.write(work)


def end_session(database: Database, session_id: str) -> None:
    """A browser has signed out."""
    database.write(lambda cursor: cursor.run("DELETE FROM web_session WHERE id = :id", id=session_id))


def session_token(database: Database, session_id: str, given: str, now: datetime) -> Token | None:
    """The valid token behind a session that is not over, if that is the hash of its secret."""
    sql = "SELECT token_id, hash, expires_at FROM web_session WHERE id = :id"

    def work(cursor: Cursor) -> list[Token]:
        for token_id, hashed, ends in cursor.rows(sql, id=session_id):
            if same(str(hashed), given) and now < instant(ends):
                return _found(cursor, " WHERE id = :id", id=str(token_id))
        return []

    return next((one for one in database.read(work) if one.state(now) == "valid"), None)
