"""Keeping `flow_hour`: how many rows of the history tell of which edge, hour by hour.

Every row of the history is counted once. How far the counting has come is a number of the history's rows, and not a
moment: clocks are set back, a row may carry an older moment than its commit, and a long transaction writes rows that
nobody sees until it ends.

On SQLite the order of the numbers is the order of commits. On PostgreSQL it is not: a number is drawn before its
transaction ends. So the newest number is noted together with the transactions that write the history then, and is
counted up to once all of these are over: nothing below it can appear any more. A transaction that takes long delays
the counting and loses nothing, and whoever reads adds what is not yet counted (see `flow`).

Pruning takes rows out of the history. What it takes is added to `pruned`, and to the count if it was not counted yet,
in the transaction that takes it: the history and `flow_hour` agree at any moment.
"""

from __future__ import annotations

from msgspec import Struct, json

from penstock.ledger.past import BASELINE
from penstock.ledger.store.database import Cursor, Database

BOOKMARK = "flow"
"""The name in `penstock_meta` under which it is kept how far the counting has come."""
COUNTED = f"actor NOT LIKE '{BASELINE}%'"
"""The rows of the history that tell of something: a baseline stands for rows that are gone, and were counted."""
RECOUNT = "flow.recount"
"""The name in `penstock_meta` of who asked to have the counts made anew; it is gone when that is done."""
AT_ONCE = 50_000
_CELL = "machine, hour, from_status, to_status, trigger"


class Bookmark(Struct, frozen=True, omit_defaults=True):
    """Rows up to `seq` are counted; those up to `ahead` can be once none of `writers` is under way any more."""

    seq: int = 0
    ahead: int = 0
    writers: tuple[str, ...] = ()


def cell(database: Database, row: str = "") -> str:
    """The columns of a row of the history as those of `flow_hour`; `row` stands before their names."""
    states = ", ".join(f"COALESCE({row}{name}, '')" for name in ("from_status", "to_status", "trigger"))
    return f"{row}machine, {database.sql.hour(f'{row}at')}, {states}"


def bookmark(cursor: Cursor, lock: str = "") -> Bookmark:
    """How far the counting has come. `lock`: nobody else counts until the transaction ends."""
    rows = cursor.rows(f"SELECT value FROM penstock_meta WHERE name = '{BOOKMARK}'{lock}")
    return json.decode(rows[0][0], type=Bookmark) if rows else Bookmark()


def locked(database: Database, cursor: Cursor) -> Bookmark:
    """The bookmark, held until the transaction ends."""
    cursor.run(f"INSERT INTO penstock_meta (name, value) VALUES ('{BOOKMARK}', '{{}}') ON CONFLICT (name) DO NOTHING")
    return bookmark(cursor, database.sql.for_update())


def roll_up(database: Database, *, at_once: int = AT_ONCE, batches: int | None = None) -> bool:
    """Count rows that are not counted yet, in transactions of so many; whether more could be counted at once.

    Rows of transactions that are under way are left to the next time.
    """
    idle, done = False, 0
    while batches is None or done < batches:
        went, more = database.write(lambda cursor: _roll_up(database, cursor, at_once))
        # One transaction may only note what the next can count.
        if not more or (idle and not went):
            return False
        idle, done = not went, done + went
    return True


def _roll_up(database: Database, cursor: Cursor, at_once: int) -> tuple[bool, bool]:
    """Count one batch: whether there was one that can be counted, and whether there is another row."""
    mark = found = locked(database, cursor)
    if mark.ahead == mark.seq:
        mark = _noted(database, cursor, mark.seq)
    went = mark.ahead > mark.seq and not (mark.writers and {*mark.writers} & {*database.sql.writers(cursor)})
    if went:
        last = min(mark.ahead, mark.seq + at_once)
        _count(database, cursor, mark.seq, last)
        left = Bookmark(last, mark.ahead)
        # Noted now for the next time, when those who write at this moment will have ended.
        mark = left if last < mark.ahead else _noted(database, cursor, last)
    if mark.seq > found.seq or mark.ahead > mark.seq:
        value = json.encode(mark).decode()
        cursor.run(f"UPDATE penstock_meta SET value = :value WHERE name = '{BOOKMARK}'", value=value)
    return went, mark.ahead > mark.seq


def _noted(database: Database, cursor: Cursor, seq: int) -> Bookmark:
    """The newest row, and then who writes: whoever drew a lower number is among them, or over and seen."""
    last = newest(cursor, seq)
    return Bookmark(seq, last, tuple(database.sql.writers(cursor)) if last > seq else ())


def newest(cursor: Cursor, seq: int) -> int:
    """The number of the newest row that is seen, of those after one."""
    ((last,),) = cursor.rows("SELECT max(seq) FROM transition_log WHERE seq > :seq", seq=seq)
    return seq if last is None else int(last)


def _count(database: Database, cursor: Cursor, first: int, last: int) -> None:
    cursor.run(
        f"INSERT INTO flow_hour ({_CELL}, n) SELECT {cell(database)}, count(*) FROM transition_log"
        f" WHERE seq > :first AND seq <= :last AND {COUNTED} GROUP BY 1, 2, 3, 4, 5"
        f" ON CONFLICT ({_CELL}) DO UPDATE SET n = flow_hour.n + excluded.n",
        first=first,
        last=last,
    )


def recount_as_asked(database: Database) -> bool:
    """Make the counts anew where somebody has asked for it; whether that was so."""
    asked = f"SELECT 1 FROM penstock_meta WHERE name = '{RECOUNT}'"

    def work(cursor: Cursor) -> bool:
        mark = locked(database, cursor)  # nobody else counts meanwhile, and no row is pruned
        if not cursor.run(f"DELETE FROM penstock_meta WHERE name = '{RECOUNT}'"):
            return False
        cursor.run("UPDATE flow_hour SET n = pruned WHERE n <> pruned")
        _count(database, cursor, -1, mark.seq)
        cursor.run("DELETE FROM flow_hour WHERE n = 0 AND pruned = 0")
        return True

    return bool(database.read(lambda cursor: cursor.rows(asked))) and database.write(work)


def take_out(database: Database, cursor: Cursor, machine: str, source: str, batch: str) -> None:
    """Rows of the history are about to go: of each unit of a batch (see `statements.batch`) those up to `n_seq`.

    The last of them becomes a baseline, and tells of nothing any more either.
    """
    mark = locked(database, cursor)
    cursor.run(
        f"INSERT INTO flow_hour ({_CELL}, n, pruned)"
        f" SELECT {cell(database, 'l.')}, sum(CASE WHEN l.seq > :mark THEN 1 ELSE 0 END), count(*)"
        f" FROM {source} CROSS JOIN transition_log l"
        f" WHERE l.machine = :machine AND l.unit_id = n_unit_id AND l.seq <= n_seq AND l.{COUNTED}"
        " GROUP BY 1, 2, 3, 4, 5"
        f" ON CONFLICT ({_CELL}) DO UPDATE SET n = flow_hour.n + excluded.n,"
        " pruned = flow_hour.pruned + excluded.pruned",
        mark=mark.seq,
        machine=machine,
        batch=batch,
    )
