"""An act that is asked for twice is done once: `Idempotency-Key`, kept for a day.

The key is written before the act and the answer after it. A process that dies in between leaves a key without an
answer: whoever asks again is told to look, because nobody knows how far it came.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from penstock.api.problems import Problem
from penstock.model.clock import instant_text
from penstock.model.secrets import same
from penstock.operations.carry import Done

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor, Database

HEADER = "Idempotency-Key"
LONGEST = 200
_KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Key:
    """One act of one person, by the name that they gave it. `digest` stands for all that is asked."""

    key: str
    who: str
    operation: str
    digest: str

    @classmethod
    def of(cls, key: str, who: str, operation: str, body: bytes) -> Key:
        """Raises Problem for a key that cannot be one."""
        if not 0 < len(key) <= LONGEST or not key.isascii() or not key.isprintable():
            detail = f"{HEADER} must have 1 to {LONGEST} printable ASCII characters; a UUID does well"
            raise Problem(HTTPStatus.BAD_REQUEST, detail)
        return cls(key, who, operation, hashlib.sha256(body).hexdigest())

    def begin(self, database: Database, now: datetime) -> Done | None:
        """Take the key; what was answered, where the act was done already.

        Raises Problem: 422 where another act has the key, 409 where this one is under way.
        """

        def work(cursor: Cursor) -> tuple[str, str, str | None] | None:
            cursor.run("DELETE FROM api_request WHERE at < :old", old=instant_text(now - _KEPT))
            made = cursor.run(
                "INSERT INTO api_request (key, who, operation, digest, at)"
                " VALUES (:key, :who, :operation, :digest, :at) ON CONFLICT (key, who) DO NOTHING",
                operation=self.operation,
                digest=self.digest,
                at=instant_text(now),
                **self._named,
            )
            if made:
                return None
            sql = "SELECT operation, digest, answer FROM api_request WHERE key = :key AND who = :who"
            ((operation, digest, answer),) = cursor.rows(sql, **self._named)
            return operation, digest, answer

        found = database.write(work)
        if found is None:
            return None
        operation, digest, answer = found
        if operation != self.operation or not same(digest, self.digest):
            detail = f"{HEADER} {self.key!r} was used for another request; choose a fresh key"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        if answer is None:
            detail = (
                f"the request with {HEADER} {self.key!r} is under way, or was cut off; look at the history before you"
                " ask again with a fresh key"
            )
            raise Problem(HTTPStatus.CONFLICT, detail)
        return msgspec.json.decode(answer, type=Done)

    def end(self, database: Database, done: Done) -> None:
        """Keep the answer. A secret is shown once, so it is not kept."""
        answer = msgspec.json.encode(msgspec.structs.replace(done, secret=None)).decode()
        sql = "UPDATE api_request SET answer = :answer WHERE key = :key AND who = :who"
        database.write(lambda cursor: cursor.run(sql, answer=answer, **self._named))

    def forget(self, database: Database) -> None:
        """Nothing was done: the key may be used again."""
        sql = "DELETE FROM api_request WHERE key = :key AND who = :who AND answer IS NULL"
        database.write(lambda cursor: cursor.run(sql, **self._named))

    @property
    def _named(self) -> dict[str, str]:
        return {"key": self.key, "who": self.who}
