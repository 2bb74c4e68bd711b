"""Every scenario: what is done, what Penstock does about it, how it stood before, and where it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chaos import on_ledger, on_workers, on_world
from chaos.on_poison import poisonous
from chaos.parts import POSTGRES, SQLITE, Case
from chaos.rows import Row

BOTH = (SQLITE, POSTGRES)


@dataclass(frozen=True, slots=True)
class Scenario:
    "`before` is what was measured before doubt and suspicion were told apart, and before stalls had an end."

    run: Callable[[Case], Iterator[Row]]
    title: str
    fault: str
    answer: str
    before: str = ""
    databases: tuple[str, ...] = BOTH
    #: Run by `--quick`, on this database.
    by_day: str | None = None


_POISON = (
    "A step that takes its process with it leaves suspicion on whatever ran there: suspects are stepped in ever"
    " smaller groups until the one that does the harm is alone, and three deaths alone park it. What was held"
    " with it is cleared."
)
_BLOCKED = (
    "A watchdog thread warns at half of the lease with the stack of the event loop, and ends the process before the"
    " lease is over. The unit whose step it was is charged with a crash, the others are given back without blame."
)

SCENARIOS: dict[str, Scenario] = {
    "kills": Scenario(
        on_workers.kills,
        "Kills",
        "The only worker, at the default concurrency, is ended by SIGKILL while it holds everything; when"
        " another has taken all of it up again, that one too.",
        "When the lease is over, any worker frees what the dead one held and takes it up. What may have been"
        " sent is looked for first. Nobody is parked for having been held by a worker that somebody killed.",
        "1,000 innocents drained for an hour",
        by_day=SQLITE,
    ),
    "storm": Scenario(
        on_workers.storm,
        "A storm of kills",
        "Workers picked by chance are killed every moment while thousands of units are worked on; each is"
        " replaced at once.",
        "The same, for every kill.",
        "55 to 68 of 5,000 parked, as if their steps had killed 3 workers",
        by_day=POSTGRES,
    ),
    "storm-default-lease": Scenario(
        on_workers.storm_at_default_lease,
        "A storm of kills, at the default lease",
        "The same with a lease of 30 s.",
        "The same. Processes of the same machine are known to be dead before their leases are over.",
        "55 to 68 of 5,000 parked, as if their steps had killed 3 workers",
    ),
    "restarts": Scenario(
        on_workers.restarts,
        "Ordinary restarts",
        "SIGTERM in the midst of long steps, and another worker in its place; twice.",
        "Running steps have `worker.stop_seconds` to finish; what does not is given back and looked for before"
        " it is done again. It counts for nothing else: a restart is nobody's fault.",
        "465 units in 2.6 hours",
        by_day=SQLITE,
    ),
    "hangups": Scenario(
        on_workers.hangups,
        "Reading the configuration again",
        "SIGHUP in the midst of long steps; twice.",
        "As with a restart, in the same process.",
    ),
    "stops": Scenario(
        on_workers.stops,
        "Stops beyond the lease",
        "A worker is stopped (SIGSTOP, a suspended machine, a long pause of the hypervisor) for longer than its"
        " lease, and goes on as if nothing had happened.",
        "Others take over when the lease is over. The worker that wakes up looks at its lease before every call,"
        " and its late commits are refused. A call that was already under way cannot be called back: only the"
        " provider can refuse it, by an idempotency key or a version. So `twice` is counted here, and is no"
        " miss.",
        "stale calls went out before the lease was looked at",
        by_day=POSTGRES,
    ),
    "outages": Scenario(
        on_ledger.outages,
        "Outages of the ledger",
        "PostgreSQL is stopped at once (`pg_ctl stop -m immediate`) for longer than the lease, and started"
        " again; twice. On SQLite a process that is none of ours keeps the writers' lock for as long.",
        "Finished steps are kept and committed when the ledger is back; running ones are stopped when the lease"
        " is over. They are in doubt, and under no suspicion.",
        "531 units at 0.5/s",
    ),
    "poison-exit": Scenario(
        poisonous("exit"),
        "Poison: os._exit",
        "One unit among thousands ends the process with `os._exit`.",
        _POISON,
        "960 innocents at 1/s",
        by_day=SQLITE,
    ),
    "poison-kill": Scenario(
        poisonous("kill"),
        "Poison: SIGKILL",
        "One unit sends SIGKILL to its own process.",
        _POISON,
        "960 innocents at 1/s",
    ),
    "poison-kill-default-lease": Scenario(
        poisonous("kill", default_lease=True),
        "Poison: SIGKILL, at the default lease",
        "The same with a lease of 30 s, where every death costs as much. The others are to lose less than a minute.",
        _POISON,
        "960 innocents at 1/s",
    ),
    "poison-segfault": Scenario(
        poisonous("segfault"), "Poison: a crash in C", "One unit reads address 0.", _POISON, "960 innocents at 1/s"
    ),
    "poison-exception": Scenario(
        poisonous("exception"),
        "Poison: no Exception",
        "One unit's step raises `GeneratorExit`, which is no `Exception`, as a panic in an extension written in"
        " Rust is none.",
        "It is a crashed step: logged, tried three times, parked.",
        "claimed for ever, no log line",
    ),
    "poison-spin": Scenario(
        poisonous("spin"),
        "Poison: an endless loop",
        "One unit's step is `while True: pass`, on the event loop.",
        _BLOCKED,
        "one worker after another hung for good, deaf to SIGTERM",
    ),
    "poison-decide": Scenario(
        poisonous("decide"),
        "Poison: a decision that blocks",
        "One unit's `decide` sleeps for an hour.",
        _BLOCKED,
        "one worker after another hung for good, deaf to SIGTERM",
    ),
    "poison-interpreter": Scenario(
        poisonous("interpreter"),
        "Poison: the interpreter's lock",
        "One unit calls into C, keeps the interpreter's lock, and does not come back. No thread of Python's runs"
        " any more.",
        "No thread of Python's can help: a timer of the operating system ends the process, with the stacks on standard"
        " error. What it held is free when its lease is over, under suspicion.",
        "one worker after another hung for good, deaf to SIGTERM",
    ),
    "poison-memory": Scenario(
        poisonous("memory"),
        "Poison: memory",
        "One unit asks for memory until the process may have no more.",
        "`MemoryError` is a crashed step like another: tried three times, parked.",
    ),
    "promotion": Scenario(
        on_ledger.promotion,
        "Promotion of a standby",
        "The primary is ended at once under load, and its synchronous standby made the primary. Workers know"
        " both addresses (`target_session_attrs=read-write`).",
        "Workers find the new primary by themselves; a COMMIT whose answer was lost is asked for there.",
        "addresses with two hosts were refused",
        databases=(POSTGRES,),
    ),
    "stalls": Scenario(
        on_ledger.stalls,
        "Stalled connections",
        "A proxy before PostgreSQL goes on accepting and acknowledging for a minute, and forwards nothing. The"
        " first time it goes on where it was, the second time it has forgotten every connection.",
        "Every call of the ledger has a time limit on our side, after which its connection is dropped;"
        " `ledger.away` and `ledger.back` are logged.",
        "150 s without one log line",
        databases=(POSTGRES,),
    ),
    "drops": Scenario(
        on_ledger.drops,
        "Dropped connections",
        "All connections to PostgreSQL are broken every few seconds.",
        "The work is done again over a new connection; a COMMIT whose answer was lost is asked for, not repeated.",
        databases=(POSTGRES,),
        by_day=POSTGRES,
    ),
    "disk": Scenario(
        on_ledger.disk,
        "A full disk",
        "The disk of the ledger is filled to the last byte for longer than the lease, and freed; twice.",
        "As if the ledger were away: nothing is half written, and work goes on when there is room. Where"
        " PostgreSQL itself gives up, somebody has to start it again; here the harness does.",
    ),
    "clocks": Scenario(
        on_world.clocks,
        "Clocks that jump",
        "The workers' clocks jump a day ahead, back, a day behind and on again, while a schedule ticks every"
        " second and every unit's first call fails.",
        "On PostgreSQL the server's clock decides; the workers learn how far theirs is off. On SQLite the"
        " machine's clock is the ledger's: a schedule that is due later than its next tick is mended. A unit's"
        " retry that was planned before the clock was set back waits for its moment, so here all are done"
        " before.",
        "retries due in 24 h, schedules silent for a day",
    ),
    "crowd": Scenario(
        on_world.crowd,
        "Fifty workers",
        "Fifty workers start at once on a PostgreSQL of stock settings, with its hundred connections, and all"
        " have work.",
        "A worker keeps one connection for its lease and gives idle ones back; a start that finds no room waits"
        " and says why.",
        "8 never started, 7 lost their lease, `status` was locked out",
        databases=(POSTGRES,),
    ),
}


def chosen(words: list[str]) -> list[str]:
    "The scenarios of these names, or whose names begin so (`poison`). Raises ValueError for what is none."
    if not words or words == ["all"]:
        return list(SCENARIOS)
    unknown = [word for word in words if not any(name.startswith(word) for name in SCENARIOS)]
    if unknown:
        raise ValueError(f"there is no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return [name for name in SCENARIOS if any(name.startswith(word) for word in words)]
