"""`partition_state` in the database: the seed's columns, its checks, who may write, and the trace of whoever did."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from penstock.ledger.care.doctor import examine
from penstock.ledger.schema.tables import machine_table
from penstock.lifecycles.partitions.machine import MACHINES, P, PartitionState, partition
from penstock.model.errors import IllegalMove, LedgerRefused, MachineError
from penstock.model.machine import Actor, Machine
from penstock.model.outcome import Birth, Move
from penstock.model.unit import GuardedUnit, Ref, replace
from tests.support.partitions import KEY, Partitions, rows

DOCS = Path(__file__).resolve().parents[3] / "docs"
KNOWN = {m.name: m for m in MACHINES}
SEED = {
    "source": "TEXT",
    "customer_id": "TEXT",
    "query_name": "TEXT",
    "logical_date": "DATE",
    "status": "TEXT",
    "current_run_id": "TEXT",
    "schema_version": "TEXT",
    "record_count": "BIGINT",
    "updated_at": "TIMESTAMP WITH TIME ZONE",
    "error_message": "TEXT",
    "attempt_count": "INTEGER",
}


def test_the_table_is_the_seeds_with_the_kernels_columns():
    table = machine_table(partition, "postgresql")
    dialect = sa.dialects.postgresql.dialect()
    kinds = {c.name: c.type.compile(dialect) for c in table.columns}
    own = {name: kind for name, kind in kinds.items() if name not in set(GuardedUnit.__struct_fields__) - {"status"}}
    assert own.pop("last_action") == "TEXT"
    assert own == SEED
    assert [c.name for c in table.primary_key] == ["source", "customer_id", "query_name", "logical_date"]


@pytest.mark.parametrize(
    ("indexes", "problem"),
    [
        ({"due": ("status",)}, "index name 'due' is the kernel's"),
        ({"By-Day": ("status",)}, "must be snake_case"),
        ({"day": ("no_such",)}, "an index names 'no_such', which is not a field"),
    ],
)
def test_an_index_that_cannot_be_is_refused_when_it_is_declared(indexes, problem):
    with pytest.raises(MachineError, match=problem):
        Machine("partition", PartitionState, births=partition.births, edges=partition.edges, indexes=indexes)


def test_a_range_is_counted_along_its_index(world):
    sql = (
        "SELECT count(*) FROM partition_state WHERE source = 'a' AND customer_id = 'b' AND query_name = 'c'"
        " AND status = 'success' AND logical_date >= '2026-11-01' AND logical_date <= '2026-11-30'"
    )

    def plan(cursor):
        if world.ledger.database.dialect == "sqlite":
            return cursor.rows(f"EXPLAIN QUERY PLAN {sql}")
        cursor.run("SET LOCAL enable_seqscan = off")  # the table is empty, and then it would simply be read
        return cursor.rows(f"EXPLAIN {sql}")

    steps = "\n".join(str(row) for row in world.ledger.read(plan))
    assert "partition_state_range" in steps, steps


def state(**columns) -> PartitionState:
    return PartitionState(
        source=KEY.source,
        customer_id=KEY.customer_id,
        query_name=KEY.query_name,
        logical_date=KEY.logical_date,
        **columns,
    )


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"status": P.SUCCESS}, "success_has_run"),
        ({"status": P.SUCCESS, "current_run_id": "r"}, "success_has_run"),
        ({"status": P.SUCCESS, "current_run_id": "r", "record_count": -1}, "success_has_run"),
        ({"status": P.SUCCESS, "current_run_id": "r", "record_count": 1, "error_message": "x"}, "success_has_run"),
        ({"status": P.FAILED, "error_message": "x", "attempt_count": 1}, "failed_has_error"),
        ({"status": P.FAILED, "current_run_id": "r", "attempt_count": 1}, "failed_has_error"),
        ({"status": P.FAILED, "current_run_id": "r", "error_message": "", "attempt_count": 1}, "failed_has_error"),
        ({"status": P.FAILED, "current_run_id": "r", "error_message": "x"}, "failed_has_error"),
    ],
)
def test_a_state_that_says_too_little_is_refused_by_the_database(world, columns, check):
    with pytest.raises(LedgerRefused, match=check):
        world.ledger.together([Birth(state(**columns), actor=Actor.VALIDATOR)], who="test")
    assert world.state() is None


def test_a_customer_id_with_hyphens_is_refused_by_the_database(world):
    with pytest.raises(LedgerRefused, match="customer_is_canonical"):
        world.ledger.together([Birth(replace(state(), customer_id="111-111"), actor=Actor.VALIDATOR)], who="test")


@pytest.mark.parametrize("actor", sorted(set(Actor) - {Actor.VALIDATOR}))
def test_only_validators_declare_a_run_good_or_bad(world, actor):
    world.judge()
    before = world.state()
    assert before is not None
    with pytest.raises(IllegalMove, match="only validator may move a unit"):
        world.ledger.move(Ref("partition", str(KEY)), P.FAILED, actor=actor, who="x", reason="no", error_message="bad")
    assert world.state() == before


WHO = {
    (None, "pending"): {"operator", "validator"},
    (None, "success"): {"validator"},
    (None, "failed"): {"validator"},
    ("pending", "success"): {"validator"},
    ("pending", "failed"): {"validator"},
    ("success", "success"): {"validator"},
    ("success", "failed"): {"validator"},
    ("success", "pending"): {"operator"},
    ("failed", "success"): {"validator"},
    ("failed", "failed"): {"validator"},
    ("failed", "pending"): {"operator"},
}
"""Who may do what to a partition: everything there is, and nobody else."""


def test_nobody_else_gives_birth_to_a_partition_or_moves_it():
    found: dict[tuple[str | None, str], set[str]] = {(None, s): {*who} for s, who in partition.born_by.items()}
    found |= {pair: {*actors} for pair, actors in partition.pairs.items()}
    assert found == WHO


def test_a_worker_can_neither_make_a_partition_safe_nor_point_it_at_a_run_of_its_own(world):
    good = {"status": P.SUCCESS, "current_run_id": "r", "record_count": 1}
    with pytest.raises(IllegalMove, match="only validator may create a unit as success, not worker"):
        world.ledger.together([Birth(state(**good))], who="test")
    world.ledger.together([Birth(state(), actor=Actor.OPERATOR)], who="test")
    pending = world.state()
    with pytest.raises(IllegalMove, match="only validator may move a unit from pending to success, not worker"):
        world.ledger.together([Move(pending, replace(pending, **good), "mine")], who="test")
    world.judge()
    safe = world.state()
    with pytest.raises(IllegalMove, match="only validator may move a unit from success to success, not worker"):
        world.ledger.together([Move(safe, replace(safe, current_run_id="mine"), "mine")], who="test")
    assert world.state() == safe


def test_every_change_of_the_run_is_in_the_history_even_when_the_status_stays(world):
    first, second = world.judge(), world.judge()
    assert first < second
    found = world.rows(
        "SELECT from_status, to_status, data FROM transition_log WHERE machine = 'partition' ORDER BY seq"
    )
    assert [(a, b) for a, b, _ in found] == [(None, "success"), ("success", "success")]
    assert [first in str(found[0][2]), second in str(found[1][2])] == [True, True]


def test_what_goes_together_goes_together_or_not_at_all(world):
    world.judge()
    before = world.state()
    assert before is not None
    stale = Move(
        replace(before, version=before.version - 1), replace(before, version=before.version - 1), "x", Actor.VALIDATOR
    )
    with pytest.raises(LedgerRefused, match="changed since it was read"):
        world.ledger.together([stale], who="test")
    assert world.state() == before


def test_the_doctor_flags_a_state_that_was_written_past_the_validators(world):
    world.judge()
    assert examine(world.ledger.database, KNOWN) == []
    sql = f"UPDATE partition_state SET status = 'failed', error_message = 'typed by hand' WHERE unit_id = '{KEY}'"
    world.ledger.database.write(lambda cursor: cursor.run(sql))
    assert world.history()[-1][:3] == ("success", "failed", "sql")
    (finding,) = examine(world.ledger.database, KNOWN)
    assert (finding.check, finding.subject, finding.severity) == ("validated", f"partition:{KEY}", "error")
    world.judge()
    assert examine(world.ledger.database, KNOWN) == [], "a validator has seen it since"


@pytest.mark.parametrize("who", ["worker:w1", "api:me", "scheduler:s", "nobody", "operator:jo"])
def test_the_doctor_flags_a_state_last_written_by_anybody_but_those_the_machine_names(world, who):
    """By a program that keeps the rules of the columns and not those of the actors."""
    world.judge([{"bad": 1}])
    assert examine(world.ledger.database, KNOWN) == []
    sql = f"UPDATE partition_state SET version = version + 1, changed_by = '{who}', current_run_id = 'mine'"
    world.ledger.database.write(lambda cursor: cursor.run(sql))
    findings = examine(world.ledger.database, KNOWN)
    assert {f.check for f in findings} == ({"validated", "pairs"})
    assert f"was made failed by {who.partition(':')[0]} and not by validator" in str(findings)
    world.judge()
    assert {f.check for f in examine(world.ledger.database, KNOWN)} == {"pairs"}, "the history keeps it"


def test_the_doctor_leaves_what_operators_may_do_alone(world):
    world.judge()
    ref = Ref("partition", str(KEY))
    empty = {"current_run_id": None, "schema_version": None, "record_count": None}
    world.ledger.move(ref, P.PENDING, actor=Actor.OPERATOR, who="jo", reason="again", **empty)
    assert examine(world.ledger.database, KNOWN) == []


def test_a_validators_name_cannot_be_written_beside_what_sql_did(world):
    world.judge([{"bad": 1}])
    good = "status = 'success', record_count = 1, error_message = NULL"
    named = "UPDATE partition_state SET changed_by = 'validator:v'"
    world.ledger.database.write(lambda cursor: cursor.run(f"{named}, {good}"))
    assert world.history()[-1][:3] == ("failed", "success", "sql")
    for sql in (named, f"{named}, updated_at = NULL", named.replace("validator:v", "operator:jo")):
        world.ledger.database.write(lambda cursor, sql=sql: cursor.run(sql))
        assert world.history()[-1][:3] == ("success", "success", "sql")
    assert [f.check for f in examine(world.ledger.database, KNOWN)] == ["validated"]


def test_a_validator_that_confirms_what_sql_did_is_in_the_history(world):
    """Whoever writes last is known, even when nothing but that has changed."""
    run_id = world.judge([{"bad": 1}])
    good = "status = 'success', record_count = 1, error_message = NULL"
    world.ledger.database.write(lambda cursor: cursor.run(f"UPDATE partition_state SET {good}"))
    ref = Ref("partition", str(KEY))
    world.ledger.move(ref, P.SUCCESS, actor=Actor.VALIDATOR, who="v", reason="so it is", current_run_id=run_id)
    assert world.history()[-1] == ("success", "success", "validator", "so it is")
    assert examine(world.ledger.database, KNOWN) == []


def test_the_view_shows_what_is_safe(world):
    good = world.judge()
    other = type(KEY)(KEY.source, KEY.customer_id, KEY.query_name, KEY.logical_date + timedelta(days=1))
    world.judge([{"bad": 1}], other)
    assert world.rows("SELECT customer_id, current_run_id, record_count FROM safe_partitions") == [
        (KEY.customer_id, good, 3)
    ]


def grants() -> str:
    """The SQL that the documentation gives for the role of extractors."""
    text = (DOCS / "partitions.md").read_text()
    return text.split("```sql\n-- the extractors' role\n")[1].split("```")[0]


def test_a_role_for_extractors_is_refused_by_postgres(postgres_url, tmp_path):
    world = Partitions(postgres_url, tmp_path)
    run_id = world.judge(rows())
    role = f"extractor_{postgres_url.rpartition('/')[2][-12:].partition('?')[0]}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(grants().replace("extractor", role))
        try:
            admin.execute(f"SET ROLE {role}")
            assert admin.execute("SELECT current_run_id FROM safe_partitions").fetchall() == [(run_id,)]
            assert admin.execute("SELECT verdict FROM partition_attempt").fetchall() == [("success",)]
            for sql in (
                "UPDATE partition_state SET status = 'failed', error_message = 'x'",
                "DELETE FROM partition_state",
                "INSERT INTO partition_state (unit_id, source) VALUES ('x', 'y')",
                "TRUNCATE partition_state",
                "UPDATE transition_log SET reason = 'x'",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    admin.execute(sql)
        finally:
            admin.execute("RESET ROLE")
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")
    world.close()
