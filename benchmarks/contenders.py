"""Who is measured: the command of each, what it guarantees, and how many items it is given."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment import PEERS_PYTHON

POSTGRES, SQLITE = "PostgreSQL", "SQLite"


@dataclass(frozen=True, slots=True)
class Contender:
    """One program and its settings; `quick_items` are for `--quick`."""

    name: str
    database: str
    program: str
    items: int
    quick_items: int
    arguments: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        return self.program == "ours"

    def command(self, places: Places, *, quick: bool) -> list[str]:
        """What to run, in the repository's root."""
        items = str(self.quick_items if quick else self.items)
        if self.ours:
            return own_command(self.program, places, self.database, "--items", items, *self.arguments)
        where = ["--url", places.postgres] if self.database == POSTGRES else ["--path", str(places.new_file())]
        module = f"benchmarks.peers.{self.program}_peer"
        return [str(PEERS_PYTHON), "-m", module, *where, "--items", items, *self.arguments]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the databases are: a server, and a folder."""

    postgres: str
    folder: Path

    def new_file(self) -> Path:
        """Never the same twice: a program that was killed leaves its own behind."""
        return self.folder / f"{uuid.uuid4().hex}.db"


def own_command(program: str, places: Places, database: str, *arguments: str) -> list[str]:
    """The command of one of Penstock's own programs."""
    url = places.postgres if database == POSTGRES else f"sqlite:///{places.new_file()}"
    return [sys.executable, "-m", f"benchmarks.{program}", "--url", url, *arguments]


OURS_POSTGRES = Contender("Penstock", POSTGRES, "ours", 100_000, 5_000)
OURS_POSTGRES_TWO = Contender("Penstock, two processes", POSTGRES, "ours", 100_000, 5_000, ("--processes", "2"))
PGQUEUER = Contender("pgqueuer", POSTGRES, "pgqueuer", 50_000, 5_000)
PROCRASTINATE_EIGHT = Contender("procrastinate, eight in one loop", POSTGRES, "procrastinate", 5_000, 300)
PROCRASTINATE = Contender(
    "procrastinate", POSTGRES, "procrastinate", 4_000, 300, ("--workers", "1", "--concurrency", "100")
)
DBOS = Contender("DBOS", POSTGRES, "dbos", 3_000, 200)
OURS_SQLITE = Contender("Penstock", SQLITE, "ours", 100_000, 5_000)
HUEY = Contender("huey", SQLITE, "huey", 10_000, 500)
HUEY_RESULTS = Contender("huey, results stored", SQLITE, "huey", 5_000, 500, ("--results",))

CONTENDERS = (
    OURS_POSTGRES,
    PGQUEUER,
    OURS_POSTGRES_TWO,
    PROCRASTINATE_EIGHT,
    PROCRASTINATE,
    DBOS,
    OURS_SQLITE,
    HUEY,
    HUEY_RESULTS,
)

GUARANTEES = {
    "Penstock": """A state change is checked by the database against the declared machine, written to an append-only
history, and refused when the claim was lost meanwhile (fenced by version and state). A crash loses nothing: the
unit is claimed again when the lease ends. Finished units stay, with their history.""",
    "pgqueuer": """Claim and completion are batched, each a transaction of its own, as ours. Completion moves the
job from the queue table to a log table and goes by the job's id alone: a worker that lost the job can still
complete it. States are not guarded.""",
    "procrastinate": """A transaction for each fetch and each completion; events are written by triggers, and a
completed job stays. Completion asks for a job that is to do or doing, not for who holds it. One worker in a
process is how its command line runs; eight in one event loop are quicker, for who writes the program that starts
them.""",
    "DBOS": """Durable workflows: the start and the outcome of each are recorded. Here a workflow has no step, which
is its best; with one recorded step it runs at less than half of the rate.""",
    "huey": """A task leaves the queue in one synced transaction before it runs, and nothing is written when it is
done: a crash in between loses the task. There is no history. With results stored, which is the nearer
comparison, completion leaves a durable trace by a second transaction; a crash in between still loses the task.""",
}
