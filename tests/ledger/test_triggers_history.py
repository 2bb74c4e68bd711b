"""The conformance suite, continued: what is logged, what cannot be unlogged, and deletion under a permit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from penstock.model.clock import parse_instant
from tests.support.hand import THEN, Hand, typed_insert, typed_move
from tests.support.machines import BATCH_RUN, FEED, INVOICE, PARTITION, batch_run, feed, invoice, partition

LOG = "SELECT from_status, to_status, actor, reason, version, at FROM transition_log ORDER BY seq"
ROW = "SELECT status, version, changed_by, change_reason, changed_at, claimed_by FROM invoice"
EVENT = "INSERT INTO event_log (tenant_id, event_key, event_type, payload, created_at) VALUES"


def born(hand: Hand, number: str = "1") -> None:
    """Type one invoice into the ledger."""
    hand.type(typed_insert(INVOICE, invoice(number)))


def instant(value: object) -> datetime:
    return parse_instant(value) if isinstance(value, str) else value  # type: ignore[return-value]


def document(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def is_now(value: object) -> bool:
    return abs(datetime.now(UTC) - instant(value)) < timedelta(seconds=30)


# Births.


def test_a_typed_birth_is_logged_and_dated(hand):
    born(hand)
    log = hand.type(LOG)
    row = hand.type(ROW)
    assert log == [(None, "QUEUED", "sql", None, row[0][1], row[0][4])]
    assert row[0][2] == "sql"
    assert is_now(row[0][4])


def test_a_typed_birth_has_a_random_version(hand):
    for number in "1234":
        born(hand, number)
    versions = {row[0] for row in hand.type("SELECT version FROM invoice")}
    assert len(versions) == 4
    assert all(0 <= version < 2**53 for version in versions)


def test_a_typed_birth_may_name_its_reason(hand):
    sql = (
        typed_insert(INVOICE, invoice())
        .replace("(unit_id", "(change_reason, unit_id")
        .replace("('acme", "('by hand', 'acme", 1)
    )
    hand.type(sql)
    assert hand.log() == [(None, "QUEUED", "sql", "by hand")]


def test_many_births_in_one_statement_are_logged_each(hand):
    rows = ", ".join(f"('acme/{n}', 'acme', '{n}', 'QUEUED', 1)" for n in range(5))
    hand.type(f"INSERT INTO invoice (unit_id, tenant, number, status, amount_minor) VALUES {rows}")
    found = hand.type("SELECT unit_id, to_status FROM transition_log ORDER BY unit_id")
    assert found == [(f"acme/{n}", "QUEUED") for n in range(5)]


def test_a_birth_logs_the_tracked_columns(hand):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1", record_count=3, note="not tracked")))
    (found,) = hand.type("SELECT data FROM transition_log")
    assert document(found[0]) == {"current_run_id": "r1", "schema_version": None, "record_count": 3}


def test_a_generated_column_follows_the_claim(hand):
    hand.type(typed_insert(FEED, feed()))
    assert hand.type("SELECT refreshing FROM feeds") == [(False,)]
    hand.type("UPDATE feeds SET claimed_by = 'w1', version = version + 1")
    assert hand.type("SELECT refreshing FROM feeds") == [(True,)]
    hand.type("UPDATE feeds SET status = 'fetching'")
    assert hand.type("SELECT refreshing FROM feeds") == [(False,)]


def test_a_generated_column_cannot_be_written(hand):
    hand.type(typed_insert(FEED, feed()))
    assert "refreshing" in hand.refused("UPDATE feeds SET refreshing = true")


# Changes.


def test_a_typed_move_is_logged_as_sql_and_takes_the_claim_away(hand):
    born(hand)
    hand.type("UPDATE invoice SET claimed_by = 'w1', version = version + 1")
    (before,) = hand.type(ROW)
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    (row,) = hand.type(ROW)
    assert row[:4] == ("SENDING", before[1] + 1, "sql", None)
    assert row[5] is None
    assert hand.type(LOG)[1:] == [("QUEUED", "SENDING", "sql", None, before[1] + 1, row[4])]
    assert is_now(row[4])


def test_a_typed_move_may_name_its_reason(hand):
    born(hand)
    hand.type("UPDATE invoice SET status = 'SENDING', change_reason = 'by hand'")
    assert hand.log()[-1] == ("QUEUED", "SENDING", "sql", "by hand")


def test_a_typed_move_does_not_repeat_the_reason_before_it(hand):
    born(hand)
    hand.type("UPDATE invoice SET status = 'SENDING', change_reason = 'by hand'")
    hand.type("UPDATE invoice SET status = 'QUEUED'")
    assert hand.log()[-1] == ("SENDING", "QUEUED", "sql", None)


def test_a_typed_move_cannot_pose_as_another_actor(hand):
    born(hand)
    hand.type("UPDATE invoice SET status = 'SENDING', changed_by = 'operator:alice'")
    assert hand.log()[-1] == ("QUEUED", "SENDING", "sql", "changed changed_by")
    assert hand.type("SELECT changed_by FROM invoice") == [("sql",)]


def test_a_move_that_raises_the_version_is_logged_as_it_says(hand):
    """The kernel's own writes: they set version, actor, reason and moment themselves."""
    born(hand)
    hand.type(
        "UPDATE invoice SET status = 'SENDING', version = 7, changed_by = 'worker:w1', change_reason = 'claim',"
        f" changed_at = {THEN}, claimed_by = 'w1'"
    )
    *rest, at = hand.type(LOG)[-1]
    assert rest == ["QUEUED", "SENDING", "worker:w1", "claim", 7]
    assert instant(at) == parse_instant(THEN.strip("'"))
    assert hand.type("SELECT version, claimed_by FROM invoice") == [(7, "w1")]


def test_every_row_of_a_typed_update_is_logged(hand):
    for number in "123":
        born(hand, number)
    before = dict(hand.type("SELECT unit_id, version FROM invoice"))
    hand.type("UPDATE invoice SET status = 'SENDING', claimed_by = 'w1'")
    found = hand.type("SELECT unit_id, version, actor FROM transition_log WHERE to_status = 'SENDING' ORDER BY unit_id")
    assert found == [(unit_id, version + 1, "sql") for unit_id, version in sorted(before.items())]
    rows = hand.type("SELECT unit_id, version, claimed_by FROM invoice ORDER BY unit_id")
    assert rows == [(unit_id, version + 1, None) for unit_id, version in sorted(before.items())]


def test_a_tracked_column_that_changes_alone_is_logged_with_data(hand):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
    hand.type("UPDATE partitions SET status = 'success'")
    ((version,),) = hand.type("SELECT version FROM partitions")
    hand.type("UPDATE partitions SET current_run_id = 'r2'")
    assert hand.log()[-1] == ("success", "success", "sql", "changed current_run_id")
    ((found, logged),) = hand.type("SELECT data, version FROM transition_log ORDER BY seq DESC LIMIT 1")
    assert document(found) == {"current_run_id": "r2", "schema_version": None, "record_count": None}
    assert logged == version + 1
    assert hand.type("SELECT version, changed_by FROM partitions") == [(version + 1, "sql")]


def test_a_tracked_column_that_becomes_null_is_logged(hand):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
    hand.type("UPDATE partitions SET current_run_id = NULL")
    ((found,),) = hand.type("SELECT data FROM transition_log ORDER BY seq DESC LIMIT 1")
    assert document(found) == {"current_run_id": None, "schema_version": None, "record_count": None}


def test_a_tracked_column_written_again_is_not_logged(hand):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
    before = hand.everything()
    hand.type("UPDATE partitions SET current_run_id = 'r1'")
    assert hand.everything() == before


def test_an_untracked_column_is_logged_by_name_and_takes_the_claim_away(hand):
    born(hand)
    hand.type("UPDATE invoice SET claimed_by = 'w1', version = version + 1")
    ((version,),) = hand.type("SELECT version FROM invoice")
    hand.type("UPDATE invoice SET amount_minor = 7, remote_id = 'r'")
    found = hand.type("SELECT amount_minor, version, claimed_by, changed_by FROM invoice")
    assert found == [(7, version + 1, None, "sql")]
    assert hand.log()[1:] == [("QUEUED", "QUEUED", "sql", "changed amount_minor, remote_id")]


def test_a_typed_reason_stands_before_the_columns(hand):
    born(hand)
    hand.type("UPDATE invoice SET amount_minor = 7, change_reason = 'a wrong amount'")
    assert hand.log()[-1] == ("QUEUED", "QUEUED", "sql", "a wrong amount (changed amount_minor)")
    hand.type("UPDATE invoice SET change_reason = 'none'")
    assert hand.log()[-1] == ("QUEUED", "QUEUED", "sql", "none")


def test_an_untracked_column_written_again_is_not_logged(hand):
    born(hand)
    before = hand.everything()
    hand.type("UPDATE invoice SET amount_minor = amount_minor, remote_id = remote_id, due_at = due_at")
    assert hand.everything() == before


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (f"due_at = {THEN}", "due_at"),
        ("attempts = 2, crashes = 1", "attempts, crashes"),
        (f"parked_at = {THEN}, parked_reason = 'wait'", "parked_at, parked_reason"),
        ("gate_id = 'api'", "gate_id"),
        ("claimed_by = 'me'", "claimed_by"),
        ("changed_by = 'operator:alice'", "changed_by"),
        (f"changed_at = {THEN}", "changed_at"),
        (f"amount_minor = 7, due_at = {THEN}, wakes = wakes + 1", "amount_minor, due_at"),
    ],
)
def test_a_column_of_the_kernel_is_watched_too(hand, typed, names):
    born(hand)
    hand.type("INSERT INTO gate (gate_id) VALUES ('api')")
    ((version,),) = hand.type("SELECT version FROM invoice")
    hand.type(f"UPDATE invoice SET {typed}")
    assert hand.log()[1:] == [("QUEUED", "QUEUED", "sql", f"changed {names}")]
    assert hand.type("SELECT version, changed_by, claimed_by FROM invoice") == [(version + 1, "sql", None)]


def test_a_guarded_unit_is_watched_too(hand):
    hand.type(typed_insert(PARTITION, partition()))
    ((version,),) = hand.type("SELECT version FROM partitions")
    hand.type("UPDATE partitions SET note = 'look'")
    assert hand.log()[-1] == ("pending", "pending", "sql", "changed note")
    assert hand.type("SELECT version, changed_by FROM partitions") == [(version + 1, "sql")]


def test_a_tally_is_not_logged_and_a_counter_typed_by_hand_is(hand):
    hand.type(typed_insert(BATCH_RUN, batch_run()))
    ((version,),) = hand.type("SELECT version FROM batch_run")
    hand.type("UPDATE batch_run SET items_done = items_done + 1, tallies = tallies + 1")
    assert hand.type("SELECT version FROM batch_run") == [(version,)]
    assert len(hand.log()) == 1
    hand.type("UPDATE batch_run SET items_done = 7")
    assert hand.log()[1:] == [("created", "created", "sql", "changed items_done")]
    assert hand.type("SELECT version, items_done FROM batch_run") == [(version + 1, 7)]


def test_a_wake_by_hand_is_not_logged_and_leaves_the_version(hand):
    hand.type(typed_insert(FEED, feed()))
    ((version,),) = hand.type("SELECT version FROM feeds")
    hand.type(f"UPDATE feeds SET next_refresh_at = {THEN}, wakes = wakes + 1")
    assert hand.type("SELECT version, wakes FROM feeds") == [(version, 1)]
    assert len(hand.log()) == 1


def test_a_rolled_back_move_leaves_no_trace(hand):
    born(hand)
    before = hand.everything()
    with hand.together(keep=False):
        hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    assert hand.everything() == before


def test_a_chain_of_moves_in_one_transaction_is_logged_in_order(hand):
    born(hand)
    with hand.together():
        for target in ("SENDING", "QUEUED", "SENDING", "FAILED", "QUEUED"):
            hand.type(typed_move(INVOICE, "acme/1", target))
    log = hand.type(LOG)
    assert [row[1] for row in log] == ["QUEUED", "SENDING", "QUEUED", "SENDING", "FAILED", "QUEUED"]
    assert [row[4] - log[0][4] for row in log] == [0, 1, 2, 3, 4, 5]


# The history cannot be changed.


@pytest.mark.parametrize(
    "sql",
    ["UPDATE transition_log SET actor = 'nobody'", "UPDATE transition_log SET seq = 9", "DELETE FROM transition_log"],
)
def test_the_log_is_append_only(hand, sql):
    born(hand)
    assert "transition_log" in hand.refused(
        sql if "seq" not in sql or hand.dialect == "sqlite" else sql.replace("9", "DEFAULT")
    )


@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR REPLACE", "INSERT", "INSERT OR IGNORE"])
def test_a_row_of_the_log_cannot_be_replaced(sqlite_hand, verb):
    born(sqlite_hand)
    ((seq,),) = sqlite_hand.type("SELECT seq FROM transition_log")
    columns = "seq, machine, unit_id, to_status, actor, version, at"
    text = sqlite_hand.refused(
        f"{verb} INTO transition_log ({columns}) VALUES ({seq}, 'invoice', 'x', 'SENT', 'me', 1, {THEN})"
    )
    assert "transition_log is append-only; a row of it cannot be replaced" in text


@pytest.mark.parametrize("seq", [-1, 0])
def test_a_row_of_the_log_cannot_stand_before_the_first(sqlite_hand, seq):
    """A row numbered -1 would make the guard see every later row as its replacement."""
    columns = "seq, machine, unit_id, to_status, actor, version, at"
    sqlite_hand.refused(
        f"INSERT INTO transition_log ({columns}) VALUES ({seq}, 'invoice', 'x', 'QUEUED', 'me', 1, {THEN})"
    )
    born(sqlite_hand)
    assert len(sqlite_hand.log()) == 1


def test_a_row_of_the_log_cannot_be_replaced_by_an_upsert(postgres_hand):
    born(postgres_hand)
    text = postgres_hand.refused(
        "INSERT INTO transition_log (seq, machine, unit_id, to_status, actor, version, at) OVERRIDING SYSTEM VALUE"
        " SELECT seq, machine, unit_id, 'SENT', 'me', 1, at FROM transition_log"
        " ON CONFLICT (machine, unit_id, seq) DO UPDATE SET to_status = 'SENT'"
    )
    assert "transition_log is append-only" in text or "is written by the triggers" in text


@pytest.mark.parametrize("table", ["transition_log", "prune_permit", "event_log"])
def test_truncate_of_the_history_is_refused(postgres_hand, table):
    born(postgres_hand)
    assert f"{table} is append-only" in postgres_hand.refused(f"TRUNCATE {table}")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE prune_permit SET open = 'open'",
        "UPDATE prune_permit SET open = NULL",
        "UPDATE prune_permit SET actor = 'nobody'",
        "UPDATE prune_permit SET reason = 'none'",
        "UPDATE prune_permit SET id = 'p2'",
        "DELETE FROM prune_permit",
    ],
)
def test_a_permit_is_append_only(hand, sql):
    hand.prune()
    assert "prune_permit is append-only" in hand.refused(sql)


@pytest.mark.parametrize("change", ["actor = 'nobody'", "reason = 'none'", "machine = 'feed'", "id = 'p2'"])
def test_a_permit_that_is_closed_changes_nothing_else(hand, change):
    with hand.together(keep=False):
        hand.permit()
        with pytest.raises(hand.error, match="prune_permit is append-only"):
            hand.type(f"UPDATE prune_permit SET open = NULL, {change}")


@pytest.mark.parametrize("verb", ["REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"])
def test_a_permit_cannot_be_replaced(sqlite_hand, verb):
    sqlite_hand.prune()
    columns = "id, machine, actor, reason, at, open"
    text = sqlite_hand.refused(
        f"{verb} INTO prune_permit ({columns}) VALUES ('p1', 'feed', 'me', 'mine', {THEN}, 'open')"
    )
    assert "prune_permit is append-only; a permit cannot be replaced" in text


@pytest.mark.parametrize("sql", ["UPDATE event_log SET event_type = 'x'", "DELETE FROM event_log"])
def test_the_events_are_append_only(hand, sql):
    hand.type(f"{EVENT} ('default', 'e1', 'sent', '{{}}', {THEN})")
    assert "event_log is append-only" in hand.refused(sql)


@pytest.mark.parametrize("verb", ["INSERT", "REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE"])
def test_a_second_event_of_a_key_is_ignored(sqlite_hand, verb):
    sqlite_hand.type(f"{EVENT} ('default', 'e1', 'sent', '{{}}', {THEN})")
    sqlite_hand.type(EVENT.replace("INSERT", verb) + f" ('default', 'e1', 'other', '{{}}', {THEN})")
    assert sqlite_hand.type("SELECT event_type FROM event_log") == [("sent",)]


def test_a_second_event_of_a_key_cannot_replace_the_first(postgres_hand):
    postgres_hand.type(f"{EVENT} ('default', 'e1', 'sent', '{{}}', {THEN})")
    other = f"{EVENT} ('default', 'e1', 'other', '{{}}', {THEN}) ON CONFLICT (tenant_id, event_key)"
    postgres_hand.type(other + " DO NOTHING")
    postgres_hand.refused(other + " DO UPDATE SET event_type = 'other'")
    assert postgres_hand.type("SELECT event_type FROM event_log") == [("sent",)]


def test_another_tenant_may_have_an_event_of_the_same_key(hand):
    hand.type(f"{EVENT} ('one', 'e1', 'sent', '{{}}', {THEN}), ('two', 'e1', 'sent', '{{}}', {THEN})")
    assert hand.type("SELECT count(*) FROM event_log") == [(2,)]


# Pruning.


def test_a_delete_under_a_permit_is_logged_as_a_death(hand):
    born(hand, "1")
    born(hand, "2")
    ((version,),) = hand.type("SELECT version FROM invoice WHERE unit_id = 'acme/1'")
    hand.prune("DELETE FROM invoice WHERE unit_id = 'acme/1'")
    assert hand.type("SELECT unit_id FROM invoice") == [("acme/2",)]
    *rest, at = hand.type(LOG)[-1]
    assert rest == ["QUEUED", None, "operator:alice", "too old; last sql", version]
    assert instant(at) == parse_instant(THEN.strip("'"))


def test_a_death_logs_the_tracked_columns(hand):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
    hand.prune("DELETE FROM partitions", machine="partition")
    ((found,),) = hand.type("SELECT data FROM transition_log WHERE to_status IS NULL")
    assert document(found) == {"current_run_id": "r1", "schema_version": None, "record_count": None}


def test_a_dead_unit_may_be_born_again(hand):
    born(hand)
    hand.prune("DELETE FROM invoice")
    born(hand)
    assert [row[:2] for row in hand.log()] == [(None, "QUEUED"), ("QUEUED", None), (None, "QUEUED")]
    assert len({row[4] for row in hand.type(LOG)}) == 2


def test_a_permit_is_for_one_machine(hand):
    born(hand)
    with hand.together(keep=False):
        hand.permit("feed")
        with pytest.raises(hand.error, match="a unit is never deleted"):
            hand.type("DELETE FROM invoice")
    assert hand.type("SELECT unit_id FROM invoice") == [("acme/1",)]


def test_a_closed_permit_permits_nothing(hand):
    born(hand)
    hand.prune()
    assert "a unit is never deleted" in hand.refused("DELETE FROM invoice")
    assert "transition_log is append-only" in hand.refused("DELETE FROM transition_log")


def test_a_permit_that_is_not_committed_is_nobody_elses(hand, ledger_url):
    born(hand)
    with Hand(ledger_url) as other, other.together(keep=False):
        other.permit()
        if hand.dialect == "postgresql":
            assert "a unit is never deleted" in hand.refused("DELETE FROM invoice")
        assert hand.type("SELECT count(*) FROM prune_permit") == [(0,)]


def test_the_log_may_be_pruned_under_a_permit(hand):
    born(hand)
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    hand.prune("DELETE FROM transition_log WHERE to_status = 'QUEUED'")
    assert hand.log() == [("QUEUED", "SENDING", "sql", None)]


def test_the_events_may_be_pruned_under_a_permit(hand):
    hand.type(f"{EVENT} ('default', 'e1', 'sent', '{{}}', {THEN})")
    hand.prune("DELETE FROM event_log", machine="event_log")
    assert hand.type("SELECT count(*) FROM event_log") == [(0,)]


def test_somebodys_temporary_permit_permits_nothing(hand):
    """A temporary table of the same name comes first for whoever made it, but not for the guards."""
    born(hand)
    hand.type(
        "CREATE TEMPORARY TABLE prune_permit (id text, machine text, actor text, reason text, at text, open text)"
    )
    for machine in ("invoice", "event_log"):
        hand.type(f"INSERT INTO prune_permit VALUES ('{machine}', '{machine}', 'me', 'mine', {THEN}, 'open')")
    assert "a unit is never deleted" in hand.refused("DELETE FROM invoice")
    assert "transition_log is append-only" in hand.refused("DELETE FROM transition_log")


def test_pruning_does_not_lower_the_guard_against_replace(sqlite_hand):
    """After the whole history of a living unit was pruned, REPLACE of it must still be refused."""
    born(sqlite_hand)
    sqlite_hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    sqlite_hand.prune("DELETE FROM transition_log WHERE to_status = 'QUEUED'")
    assert "that unit is alive" in sqlite_hand.refused(typed_insert(INVOICE, invoice(), "REPLACE"))
