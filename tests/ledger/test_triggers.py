"""The conformance suite of the guards and the history: statements as a person would type them, on both databases."""

from __future__ import annotations

import re

import pytest

from penstock.ledger.schema import birth_rules
from penstock.model.machine import Machine
from penstock.model.unit import unit_id_of
from tests.support.hand import Hand, literal, typed_insert, typed_move
from tests.support.machines import (
    BATCH_ITEM,
    BATCH_RUN,
    INVOICE,
    MACHINES,
    PARTITION,
    SAMPLE,
    SAMPLES,
    batch_run,
    invoice,
    partition,
    sample,
)


def born(hand: Hand, number: str = "1") -> str:
    """Type one invoice into the ledger."""
    hand.type(typed_insert(INVOICE, invoice(number)))
    return f"acme/{number}"


def path_to(machine: Machine, state: str) -> list[str]:
    """The shortest way from a state that one may type a birth in: the states to pass, the first one included."""
    todo = [[b] for b in machine.births if "sql" in birth_rules.actors(machine, b)]
    while todo:
        path = todo.pop(0)
        if path[-1] == state:
            return path
        todo += [[*path, t] for s, t in machine.pairs if s == path[-1] and t not in path]
    raise AssertionError(state)


def put(hand: Hand, machine: Machine, state: str) -> str:
    """Type a unit into the ledger and lead it to a state by legal updates; its id."""
    name = machine.states.index(state) if machine is BATCH_ITEM else f"in {state}"
    fields = {"remote_id": "r1"} if machine is INVOICE else {}
    first, *rest = path_to(machine, state)
    unit = SAMPLES[machine.name](name, status=first, **fields)
    hand.type(typed_insert(machine, unit))
    for target in rest:
        hand.type(typed_move(machine, unit_id_of(unit), target))
    return unit_id_of(unit)


def status(hand: Hand, machine: Machine, unit_id: str) -> str:
    return str(hand.type(f"SELECT status FROM {machine.table} WHERE unit_id = {literal(unit_id)}")[0][0])


# Guards of a machine's table.


def test_an_illegal_update_is_refused_and_both_states_are_named(hand):
    born(hand)
    text = hand.refused("UPDATE invoice SET status = 'SENT', remote_id = 'x' WHERE unit_id = 'acme/1'")
    assert "penstock: invoice cannot go from QUEUED to SENT" in text


def test_one_illegal_row_refuses_the_whole_statement(hand):
    born(hand, "1")
    born(hand, "2")
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    assert "cannot go from QUEUED to FAILED" in hand.refused("UPDATE invoice SET status = 'FAILED'")


def test_an_unknown_target_state_is_refused(hand):
    born(hand)
    text = hand.refused("UPDATE invoice SET status = 'sending'")
    assert "penstock: invoice has no such state; its states are QUEUED, SENDING, SENT, FAILED" in text


def test_a_missing_target_state_is_refused(hand):
    born(hand)
    assert "invoice" in hand.refused("UPDATE invoice SET status = NULL")


@pytest.mark.parametrize("machine", [m for m in MACHINES if set(m.states) - set(m.births)], ids=lambda m: m.name)
def test_a_birth_in_a_wrong_state_is_refused(hand, machine):
    for state in set(machine.states) - set(machine.births):
        text = hand.refused(typed_insert(machine, SAMPLES[machine.name](status=state)))
        assert re.search(
            f"{machine.name} cannot be born as {state}; it is born as {next(iter(machine.births))}", text
        ) or (state == "SENT" and "sent_has_id" in text)


def test_a_birth_in_an_unknown_state_is_refused(hand):
    assert "invoice cannot be born" in hand.refused(typed_insert(INVOICE, invoice(status="LOST")))


def test_one_wrong_birth_refuses_the_whole_statement(hand):
    rows = "('acme/1', 'acme', '1', 'QUEUED', 1), ('acme/2', 'acme', '2', 'FAILED', 1)"
    text = hand.refused(f"INSERT INTO invoice (unit_id, tenant, number, status, amount_minor) VALUES {rows}")
    assert "invoice cannot be born as FAILED; it is born as QUEUED" in text


def test_a_second_birth_is_refused(hand):
    born(hand)
    assert "nique" in hand.refused(typed_insert(INVOICE, invoice())).replace("UNIQUE", "unique")


@pytest.mark.parametrize("sql", ["DELETE FROM invoice WHERE unit_id = 'acme/1'", "DELETE FROM invoice"])
def test_a_delete_is_refused(hand, sql):
    born(hand)
    assert 'invoice: a unit is never deleted; old ones go by "penstock db prune"' in hand.refused(sql)


def test_a_delete_that_finds_nothing_is_harmless(hand):
    born(hand)
    hand.type("DELETE FROM invoice WHERE unit_id = 'acme/2'")
    assert len(hand.log()) == 1


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_every_illegal_pair_is_refused(hand, machine):
    for source in machine.states:
        unit_id = put(hand, machine, source)
        for target in machine.states:
            if target != source and (source, target) not in machine.pairs:
                text = hand.refused(typed_move(machine, unit_id, target))
                assert f"penstock: {machine.name} cannot go from {source} to {target}" in text


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_every_legal_pair_is_accepted_and_logged(hand, machine):
    for source in machine.states:
        unit_id = put(hand, machine, source)
        for target in (t for s, t in machine.pairs if s == source and t != source):
            with hand.together(keep=False):
                hand.type(typed_move(machine, unit_id, target))
                assert status(hand, machine, unit_id) == target
                assert hand.log(unit_id)[-1] == (source, target, "sql", None)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_staying_is_accepted_and_not_logged(hand, machine):
    for source in machine.states:
        unit_id = put(hand, machine, source)
        before = hand.log()
        hand.type(typed_move(machine, unit_id, source))
        assert hand.log() == before


# Keys.


@pytest.mark.parametrize(
    "sets",
    [
        pytest.param("unit_id = 'acme/2'", id="unit_id"),
        pytest.param("number = '2'", id="a key column"),
        pytest.param("unit_id = 'acme/2', number = '2'", id="both"),
        pytest.param("unit_id = 'acme/2', number = '2', status = 'SENDING'", id="with a legal move"),
        pytest.param("number = '2', status = 'SENDING'", id="a key column with a legal move"),
        pytest.param("unit_id = NULL", id="no unit_id"),
    ],
)
def test_a_key_change_is_refused(hand, sets):
    born(hand)
    text = hand.refused(f"UPDATE invoice SET {sets}")
    assert "invoice: the key of a unit (tenant, number) cannot be changed" in text


def test_a_key_change_with_an_illegal_move_is_refused_for_either(hand):
    born(hand)
    text = hand.refused("UPDATE invoice SET number = '2', status = 'FAILED'")
    assert "the key of a unit" in text or "invoice cannot go from QUEUED to FAILED" in text


def test_a_key_that_is_written_again_is_no_change(hand):
    born(hand)
    hand.type("UPDATE invoice SET unit_id = 'acme/1', number = '1', tenant = 'acme'")
    assert len(hand.log()) == 1


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_the_unit_id_is_the_text_of_the_key(hand, machine):
    right = typed_insert(machine, SAMPLES[machine.name]())
    unit_id = literal(unit_id_of(SAMPLES[machine.name]()))
    assert "unit_id_is_key" in hand.refused(right.replace(unit_id, "'another'", 1))
    hand.type(right)
    assert hand.type(f"SELECT unit_id FROM {machine.table}") == [(unit_id_of(SAMPLES[machine.name]()),)]


@pytest.mark.parametrize(
    ("given", "other"),
    [
        ("a%2Fb%25c/", "a/b%c/"),
        ("/-7/", "/7/"),
        ("/2026-11-15/", "/2026-11-16/"),
        ("19:31:00.123Z", "19:31:00.124Z"),
        ("6ba7b810", "6ba7b811"),
    ],
)
def test_every_part_of_the_key_is_tied_to_its_column(hand, given, other):
    unit_id = literal(unit_id_of(sample()))
    text = hand.refused(typed_insert(SAMPLE, sample()).replace(unit_id, unit_id.replace(given, other), 1))
    assert "unit_id_is_key" in text


def test_an_empty_key_is_refused(hand):
    sql = typed_insert(BATCH_RUN, batch_run("x"))
    assert "unit_id_is_key" in hand.refused(sql.replace("('x', 'x'", "('', ''"))


def test_a_key_with_every_odd_character_can_be_typed(hand):
    unit = invoice("100% / 'ü' 😀 %2F")
    hand.type(typed_insert(INVOICE, unit))
    assert hand.type("SELECT unit_id, number FROM invoice") == [(unit_id_of(unit), "100% / 'ü' 😀 %2F")]


def test_the_checks_of_the_machine_hold(hand):
    born(hand)
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    assert "sent_has_id" in hand.refused(typed_move(INVOICE, "acme/1", "SENT"))
    hand.type("UPDATE invoice SET status = 'SENT', remote_id = 'r1'")
    assert status(hand, INVOICE, "acme/1") == "SENT"


# Upserts.

UPSERT = (
    "INSERT INTO invoice (unit_id, tenant, number, status, amount_minor) VALUES"
    " ('acme/1', 'acme', '1', 'QUEUED', 5) ON CONFLICT (unit_id) DO UPDATE SET "
)


def test_an_upsert_of_a_new_unit_is_a_birth(hand):
    hand.type(UPSERT + "amount_minor = excluded.amount_minor")
    assert hand.log() == [(None, "QUEUED", "sql", None)]


def test_an_upsert_of_other_columns_is_no_move(hand):
    born(hand)
    hand.type(UPSERT + "amount_minor = excluded.amount_minor")
    assert hand.type("SELECT amount_minor FROM invoice") == [(5,)]
    assert hand.log() == [(None, "QUEUED", "sql", None), ("QUEUED", "QUEUED", "sql", "changed amount_minor")]


def test_an_upsert_may_make_a_legal_move(hand):
    born(hand)
    hand.type(UPSERT + "status = 'SENDING'")
    assert hand.log() == [(None, "QUEUED", "sql", None), ("QUEUED", "SENDING", "sql", None)]


def test_an_upsert_cannot_make_an_illegal_move(hand):
    born(hand)
    assert "invoice cannot go from QUEUED to FAILED" in hand.refused(UPSERT + "status = 'FAILED'")


def test_an_upsert_that_does_nothing_leaves_no_trace(hand):
    born(hand)
    hand.type(typed_insert(INVOICE, invoice(amount_minor=5)) + " ON CONFLICT DO NOTHING")
    assert hand.type("SELECT amount_minor FROM invoice") == [(100,)]
    assert len(hand.log()) == 1


# What only SQLite has.


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR REPLACE"])
def test_replace_of_a_living_unit_is_refused(sqlite_hand, verb, recursive):
    born(sqlite_hand)
    sqlite_hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    sqlite_hand.type(f"PRAGMA recursive_triggers = {recursive}")
    text = sqlite_hand.refused(typed_insert(INVOICE, invoice(), verb))
    assert "penstock: that unit is alive" in text or "a unit is never deleted" in text


@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL"])
def test_any_insert_of_a_new_unit_is_a_birth(sqlite_hand, verb):
    sqlite_hand.type(typed_insert(INVOICE, invoice(), verb))
    assert sqlite_hand.log() == [(None, "QUEUED", "sql", None)]


@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL", "INSERT OR ROLLBACK"])
def test_no_insert_gives_birth_in_a_wrong_state(sqlite_hand, verb):
    text = sqlite_hand.refused(typed_insert(INVOICE, invoice(status="FAILED"), verb))
    assert "invoice cannot be born as FAILED" in text


def test_insert_or_ignore_leaves_a_living_unit_alone(sqlite_hand):
    born(sqlite_hand)
    before = sqlite_hand.everything()
    sqlite_hand.type(typed_insert(INVOICE, invoice(amount_minor=5), "INSERT OR IGNORE"))
    assert sqlite_hand.everything() == before


@pytest.mark.parametrize("verb", ["UPDATE OR REPLACE", "UPDATE OR IGNORE", "UPDATE OR FAIL", "UPDATE OR ROLLBACK"])
def test_no_update_takes_the_place_of_another_unit(sqlite_hand, verb):
    born(sqlite_hand, "1")
    born(sqlite_hand, "2")
    text = sqlite_hand.refused(f"{verb} invoice SET unit_id = 'acme/2', number = '2' WHERE unit_id = 'acme/1'")
    assert "the key of a unit (tenant, number) cannot be changed" in text


@pytest.mark.parametrize("verb", ["UPDATE OR REPLACE", "UPDATE OR IGNORE", "UPDATE OR FAIL", "UPDATE OR ROLLBACK"])
def test_no_update_makes_an_illegal_move(sqlite_hand, verb):
    born(sqlite_hand)
    assert "cannot go from QUEUED to FAILED" in sqlite_hand.refused(f"{verb} invoice SET status = 'FAILED'")


@pytest.mark.parametrize("column", ["version", "changed_by", "changed_at", "change_reason", "status", "gate_id"])
@pytest.mark.parametrize("verb", ["INSERT OR IGNORE", "INSERT OR REPLACE"])
def test_no_insert_skips_the_log(sqlite_hand, verb, column):
    """A NULL where the log has NOT NULL would make an ignored failure, and a unit without a birth."""
    values = {"unit_id": "'acme/1'", "tenant": "'acme'", "number": "'1'", "amount_minor": "1", "status": "'QUEUED'"}
    values[column] = "NULL"
    sql = f"{verb} INTO invoice ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    try:
        sqlite_hand.type(sql)
    except sqlite_hand.error as error:
        assert "NOT NULL" in str(error)  # noqa: PT017 - a refusal is as good as a logged birth
    units = sqlite_hand.type("SELECT unit_id, status FROM invoice")
    births = sqlite_hand.type("SELECT unit_id, to_status FROM transition_log")
    assert units == births


@pytest.mark.parametrize("column", ["version", "changed_by", "changed_at", "change_reason", "unit_id"])
@pytest.mark.parametrize("verb", ["UPDATE OR IGNORE", "UPDATE OR REPLACE"])
def test_no_update_skips_the_log(sqlite_hand, verb, column):
    born(sqlite_hand)
    try:
        sqlite_hand.type(f"{verb} invoice SET status = 'SENDING', {column} = NULL")
    except sqlite_hand.error as error:
        assert re.search("NOT NULL|key of a unit", str(error))  # noqa: PT017 - a refusal is as good as a logged move
    last = sqlite_hand.type("SELECT to_status FROM transition_log ORDER BY seq DESC LIMIT 1")
    assert sqlite_hand.type("SELECT status FROM invoice") == last


@pytest.mark.parametrize("moment", ["datetime('now')", "'tomorrow'", "'2026-11-15'", "1700000000"])
def test_an_instant_that_cannot_be_read_is_refused(sqlite_hand, moment):
    """PostgreSQL has a type for it; on SQLite one such row would stop every worker that claims it."""
    born(sqlite_hand)
    assert "due_at_is_instant" in sqlite_hand.refused(f"UPDATE invoice SET due_at = {moment}")


def test_a_date_that_cannot_be_read_is_refused(sqlite_hand):
    sql = typed_insert(PARTITION, partition()).replace("2026-11-15", "2026-11-5")
    assert "logical_date_is_date" in sqlite_hand.refused(sql)


# What only PostgreSQL has.


@pytest.mark.parametrize("sql", ["TRUNCATE invoice", "TRUNCATE gate CASCADE"])
def test_truncate_is_refused(postgres_hand, sql):
    born(postgres_hand)
    assert 'units are never deleted; old ones go by "penstock db prune"' in postgres_hand.refused(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE invoice SET status = 'FAILED'",
        "DELETE FROM invoice",
        "TRUNCATE invoice",
        "UPDATE invoice SET unit_id = 'acme/2', number = '2'",
        "INSERT INTO feeds (unit_id, feed_id, url, status) VALUES ('x', 'x', '', 'error')",
        "UPDATE transition_log SET actor = 'nobody'",
        "DELETE FROM transition_log",
    ],
)
def test_a_replica_session_is_guarded_too(postgres_hand, sql):
    born(postgres_hand)
    postgres_hand.type("SET session_replication_role = replica")
    assert "penstock: " in postgres_hand.refused(sql)


def test_a_replica_session_is_logged_too(postgres_hand):
    postgres_hand.type("SET session_replication_role = replica")
    born(postgres_hand)
    postgres_hand.type("UPDATE invoice SET status = 'SENDING'")
    assert postgres_hand.log() == [(None, "QUEUED", "sql", None), ("QUEUED", "SENDING", "sql", None)]


MERGE = """MERGE INTO invoice t USING (VALUES ('1'), ('2')) AS s (number) ON t.number = s.number
WHEN MATCHED THEN UPDATE SET status = '{}'
WHEN NOT MATCHED THEN INSERT (unit_id, tenant, number, status, amount_minor)
VALUES ('acme/' || s.number, 'acme', s.number, 'QUEUED', 1)"""


def test_a_merge_is_guarded(postgres_hand):
    born(postgres_hand)
    assert "invoice cannot go from QUEUED to FAILED" in postgres_hand.refused(MERGE.format("FAILED"))


def test_a_merge_is_logged(postgres_hand):
    born(postgres_hand)
    postgres_hand.type(MERGE.format("SENDING"))
    assert postgres_hand.log("acme/1")[-1] == ("QUEUED", "SENDING", "sql", None)
    assert postgres_hand.log("acme/2") == [(None, "QUEUED", "sql", None)]


def test_copy_is_guarded(postgres_hand):
    with (
        pytest.raises(postgres_hand.error, match="invoice cannot be born as FAILED"),
        postgres_hand.connection.cursor() as cursor,
        cursor.copy("COPY invoice (unit_id, tenant, number, status, amount_minor) FROM STDIN") as copy,
    ):
        copy.write_row(("acme/1", "acme", "1", "FAILED", 1))
    assert postgres_hand.type("SELECT count(*) FROM invoice") == [(0,)]


def test_the_search_path_of_the_session_does_not_matter(postgres_hand):
    """Somebody's own transition_log, first in the path, must not swallow the history."""
    born(postgres_hand)
    postgres_hand.type("CREATE TEMPORARY TABLE transition_log (LIKE public.transition_log INCLUDING ALL)")
    postgres_hand.type("UPDATE invoice SET status = 'SENDING'")
    found = postgres_hand.type("SELECT to_status FROM public.transition_log ORDER BY seq")
    assert found == [("QUEUED",), ("SENDING",)]
