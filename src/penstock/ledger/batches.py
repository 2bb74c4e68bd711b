"""Batches of outcomes, each written once, though the answer to a commit may be lost."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger.commit import Committer, Result
from penstock.ledger.prepare import PreparedOutcome
from penstock.ledger.store.database import Cursor, Database
from penstock.model.errors import CommitUnknown


class Batches:
    """The commits of one worker. Its row counts them, which tells whether one landed whose answer was lost."""

    def __init__(self, database: Database, committer: Committer, worker: str) -> None:
        self._database = database
        self._committer = committer
        self._worker = worker
        self._seq = 0
        self._durable: list[Result] = []  # of the batch being committed: what its first entries came to
        self._unknown: tuple[int, list[Result]] | None = None

    def commit(self, entries: Sequence[PreparedOutcome]) -> list[Result]:
        """Commit a batch. After LedgerUnavailable, call again with the same batch: it is never written twice."""
        if self._unknown is not None:
            seq, results = self._unknown
            landed = self.committed() >= seq
            self._unknown = None
            if landed:
                self._seq = seq
                self._durable += results
        self._commit(entries[len(self._durable) :])
        results, self._durable = self._durable, []
        return results

    def _commit(self, entries: Sequence[PreparedOutcome]) -> None:
        """Commit what is left of a batch, by halves where it is refused; what became durable is noted at once."""
        if not entries:
            return
        applied: list[Result] = []

        def finish(cursor: Cursor, results: list[Result]) -> None:
            applied[:] = results
            cursor.run("UPDATE worker SET commit_seq = :seq WHERE id = :worker", seq=self._seq + 1, worker=self._worker)

        try:
            results = self._committer.attempt(entries, finish)
        except CommitUnknown:
            self._unknown = (self._seq + 1, list(applied))
            raise
        if results is not None:
            self._seq += 1
            self._durable += results
            return
        middle = len(entries) // 2
        self._commit(entries[:middle])
        self._commit(entries[middle:])

    def committed(self) -> int:
        """The number of the last commit that landed. The row lock waits out a COMMIT that is still under way."""
        sql = self._database.sql

        def work(cursor: Cursor) -> int:
            # Longer than a dead transaction can live (10 s), so that the lock tells the end of it.
            sql.wait_for_locks(cursor, 15_000)
            mine = f"SELECT commit_seq FROM worker WHERE id = :worker{sql.for_update()}"
            rows = cursor.rows(mine, worker=self._worker)
            return int(rows[0][0]) if rows else 0

        return self._database.write(work)
