"""Ordinary SQL against the history and its guards: what the database refuses, and what the doctor finds afterwards.

Typed on a raw connection, with its switches as somebody might set them.
"""

from __future__ import annotations

import psycopg
import pytest

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.model.errors import IllegalMove
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.unit import Ref
from tests.support.hand import THEN, Hand, typed_insert, typed_move
from tests.support.machines import INVOICE, MACHINES, PARTITION, Invoice, invoice, partition

COLUMNS = "machine, unit_id, from_status, to_status, actor, version, at"
NOT_YOURS = "written by the triggers of the units alone|that unit is alive|append-only"


def born(hand: Hand, number: str = "1") -> None:
    hand.type(typed_insert(INVOICE, invoice(number)))


def sick(url: str) -> set[str]:
    """The names of the checks by which the doctor finds something wrong."""
    with Ledger.open(url, MACHINES) as ledger:
        return {f.check for f in examine(ledger.database, ledger.machines) if f.severity == "error"}


def said(url: str, check: str) -> str:
    """What the doctor says by one of its checks."""
    with Ledger.open(url, MACHINES) as ledger:
        return " ".join(
            f"{f.subject} {f.message}" for f in examine(ledger.database, ledger.machines) if f.check == check
        )


def forge(values: str, columns: str = COLUMNS) -> str:
    return f"INSERT INTO transition_log ({columns}) VALUES ({values})"


# Only the triggers write the history.


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(f"'invoice', 'acme/1', 'QUEUED', NULL, 'me', 1, {THEN}", id="a death of a unit that lives"),
        pytest.param(f"'invoice', 'acme/1', 'QUEUED', 'SENDING', 'me', 1, {THEN}", id="an edge that was not pulled"),
        pytest.param(f"'invoice', 'acme/1', 'QUEUED', 'SENT', 'me', 1, {THEN}", id="no edge at all"),
        pytest.param(f"'invoice', 'acme/1', 'FAILED', 'QUEUED', 'me', 1, {THEN}", id="how it came to be what it is"),
        pytest.param(f"'invoice', 'acme/1', 'QUEUED', 'QUEUED', 'me', 1, {THEN}", id="that it stayed"),
        pytest.param(f"'invoice', 'acme/1', NULL, 'QUEUED', 'me', 1, {THEN}", id="a second birth"),
        pytest.param(f"'invoice', 'acme/2', NULL, 'QUEUED', 'me', 1, {THEN}", id="the birth of nobody"),
        pytest.param(f"'invoice', 'acme/2', 'SENT', NULL, 'me', 1, {THEN}", id="the death of nobody"),
        pytest.param(f"'invoice', 'acme/2', NULL, NULL, 'me', 1, {THEN}", id="nothing of nobody"),
        pytest.param(f"'nonsense', 'x', NULL, 'new', 'me', 1, {THEN}", id="a machine that is not there"),
        pytest.param(f"'invoice', 'acme/1', NULL, 'QUEUED', 'prune:p1', 1, {THEN}", id="a baseline"),
        pytest.param("machine, unit_id, from_status, to_status, actor, version, at", id="what is there already"),
    ],
)
def test_no_row_of_the_history_can_be_typed(hand, values):
    born(hand)
    sql = forge(values)
    if values.startswith("machine"):
        sql = f"INSERT INTO transition_log ({COLUMNS}) SELECT {values} FROM transition_log"
    with pytest.raises(hand.error, match=NOT_YOURS):
        hand.type(sql.replace("'me', 1", "'me', (SELECT version FROM invoice)"))
    assert len(hand.log()) == 1


def test_a_stay_cannot_be_typed_into_the_history_of_tracked_columns(hand):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
    unit = "'partition', 'sales/2026-11-15', 'pending', 'pending', 'validator:v'"
    for run in ("r1", "r2"):
        data = f'\'{{"current_run_id":"{run}","schema_version":null,"record_count":null}}\''
        with pytest.raises(hand.error, match=NOT_YOURS):
            hand.type(forge(f"{unit}, (SELECT version FROM partitions), {THEN}, {data}", f"{COLUMNS}, data"))
    assert len(hand.log()) == 1


@pytest.mark.parametrize("seq", [9223372036854775807, 9223372036854775806, 2, 1000])
def test_no_row_can_take_the_largest_number(hand, seq):
    born(hand)
    override = " OVERRIDING SYSTEM VALUE" if hand.dialect == "postgresql" else ""
    values = f"{seq}, 'invoice', 'acme/1', 'QUEUED', 'SENDING', 'me', (SELECT version + 1 FROM invoice), {THEN}"
    with pytest.raises(hand.error, match=NOT_YOURS):
        hand.type(f"INSERT INTO transition_log (seq, {COLUMNS}){override} VALUES ({values})")
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    assert [row[0] for row in hand.type("SELECT seq FROM transition_log ORDER BY seq")] == [1, 2]


def test_no_counter_of_numbers_can_be_exhausted(sqlite_hand):
    born(sqlite_hand)
    assert sqlite_hand.type("SELECT name FROM sqlite_master WHERE name = 'sqlite_sequence'") == []


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
@pytest.mark.parametrize("keys", ["OFF", "ON"])
@pytest.mark.parametrize("ignore", ["OFF", "ON"])
def test_a_forged_death_does_not_open_the_way_for_replace(sqlite_hand, tmp_path, recursive, keys, ignore):
    born(sqlite_hand)
    sqlite_hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    for pragma in (
        f"recursive_triggers = {recursive}",
        f"foreign_keys = {keys}",
        f"ignore_check_constraints = {ignore}",
    ):
        sqlite_hand.type(f"PRAGMA {pragma}")
    death = forge(f"'invoice', 'acme/1', 'SENDING', NULL, 'me', (SELECT version FROM invoice), {THEN}")
    for verb in ("INSERT", "INSERT OR IGNORE", "REPLACE", "INSERT OR FAIL", "INSERT OR ROLLBACK"):
        assert "triggers of the units alone" in sqlite_hand.refused(death.replace("INSERT", verb, 1))
    assert "alive" in sqlite_hand.refused(typed_insert(INVOICE, invoice(), "REPLACE")) or recursive == "ON"
    assert sick(f"sqlite:///{tmp_path / 'penstock.db'}") == set()


def test_the_newest_row_of_a_history_cannot_be_replaced_by_a_kinder_one(sqlite_hand):
    born(sqlite_hand)
    sqlite_hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    row = f"2, 'invoice', 'acme/1', 'QUEUED', 'SENDING', 'worker:w', (SELECT version FROM invoice), {THEN}"
    text = sqlite_hand.refused(f"REPLACE INTO transition_log (seq, {COLUMNS}) VALUES ({row})")
    assert "cannot be replaced" in text


# A permit lives as long as its transaction.


def test_a_permit_cannot_be_committed_open(hand):
    born(hand)
    with pytest.raises(hand.error, match=r"(?i)foreign key"), hand.together():
        hand.permit()
    hand.refused("DELETE FROM invoice")
    assert hand.type("SELECT count(*) FROM prune_permit") == [(0,)]


@pytest.mark.parametrize("opened", ["'open'", "'1'", "NULL", "'p1'", "''"])
def test_a_permit_is_open_in_its_own_transaction_or_not_made(hand, opened):
    born(hand)
    hand.refused(f"INSERT INTO prune_permit VALUES ('p1', 'invoice', 'me', 'mine', {THEN}, {opened})")
    hand.refused(f"INSERT INTO prune_permit VALUES ('open', 'invoice', 'me', 'mine', {THEN}, {opened})")


def test_a_connection_without_keys_opens_no_permit(sqlite_hand):
    """They are off unless a connection asks for them, and then an open permit could be committed."""
    born(sqlite_hand)
    sqlite_hand.type("PRAGMA foreign_keys = OFF")
    with pytest.raises(sqlite_hand.error, match="PRAGMA foreign_keys = ON"), sqlite_hand.together():
        sqlite_hand.permit()
    sqlite_hand.type("PRAGMA foreign_keys = ON")
    sqlite_hand.type("BEGIN")
    sqlite_hand.permit()
    sqlite_hand.type("PRAGMA foreign_keys = OFF")  # does nothing within a transaction
    with pytest.raises(sqlite_hand.error, match="FOREIGN KEY"):
        sqlite_hand.type("COMMIT")


def test_a_permit_of_another_transaction_permits_nothing(postgres_hand):
    born(postgres_hand)
    postgres_hand.type("SET session_replication_role = replica")  # keys do not bind a superuser who says so
    with postgres_hand.together():
        postgres_hand.permit()
    text = postgres_hand.refused("DELETE FROM invoice")
    assert "a unit is never deleted" in text
    assert "append-only" in postgres_hand.refused("DELETE FROM transition_log")


def test_not_even_a_permit_takes_the_newest_row_of_a_history(hand):
    born(hand)
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    with pytest.raises(hand.error, match="transition_log is append-only"):
        hand.prune("DELETE FROM transition_log")
    hand.prune("DELETE FROM transition_log WHERE to_status = 'QUEUED'")


@pytest.mark.parametrize(
    "change", ["to_status = 'SENT'", "version = 9", "unit_id = 'x'", "actor = 'me'", f"at = {THEN}"]
)
def test_under_a_permit_a_row_becomes_a_baseline_and_nothing_else(hand, change):
    born(hand)
    baseline = "from_status = NULL, actor = 'prune:p1'"
    with pytest.raises(hand.error, match="its rows cannot be changed"):
        hand.prune(f"UPDATE transition_log SET {baseline if 'actor' not in change else 'from_status = NULL'}, {change}")
    hand.prune(f"UPDATE transition_log SET {baseline}, reason = 'x'")


# Births in the database.


@pytest.mark.parametrize("who", ["sql", "worker:w1", "operator:jo", "validators:v", "validat", ""])
def test_only_validators_give_birth_where_they_alone_may(hand, who):
    sql = typed_insert(PARTITION, partition(status="success", current_run_id="r1"))
    text = hand.refused(sql.replace("(unit_id", "(changed_by, unit_id").replace("('sales", f"('{who}', 'sales", 1))
    assert "partition can be born as success only by validator" in text
    assert "only by validator" in hand.refused(sql)


def test_what_a_birth_says_of_its_maker_is_held_against_it(hand):
    sql = typed_insert(PARTITION, partition())
    said_so = sql.replace("(unit_id", "(changed_by, unit_id").replace("('sales", "('worker:w1', 'sales", 1)
    assert "partition can be born as pending only by api, operator, scheduler, validator" in hand.refused(said_so)
    hand.type(sql)
    assert hand.log() == [(None, "pending", "sql", None)]


# What the doctor finds.


def test_an_illegal_pair_that_a_guard_let_through_while_it_was_off(hand, ledger_url):
    born(hand)
    off, on = switched(hand, "invoice", "penstock_invoice_guard")
    for sql in (*off, "UPDATE invoice SET status = 'SENT', remote_id = 'x'", *on):
        hand.type(sql)
    assert sick(ledger_url) == {"pairs"}
    assert said(ledger_url, "pairs") == "invoice:acme/1 1 history row says QUEUED -> SENT by sql, which is not legal"


def test_a_change_that_history_missed_while_it_was_off(hand, ledger_url):
    hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
    off, on = switched(hand, "partitions", "penstock_partition_history")
    for sql in (*off, "UPDATE partitions SET current_run_id = 'r2'", *on):
        hand.type(sql)
    assert said(ledger_url, "present") == (
        "partition:sales/2026-11-15 its current_run_id is not the one that its history ends with"
    )


def test_a_version_that_was_set_back(hand, ledger_url):
    born(hand)
    hand.type("UPDATE invoice SET version = version - 1")
    assert "its version is not the one" in said(ledger_url, "present")


def test_rows_of_history_that_were_forged_while_nothing_guarded_it(hand, ledger_url):
    born(hand)
    off, on = switched(hand, "transition_log", "penstock_log_insert")
    unit = "'invoice', 'acme/1'"
    for sql in (
        *off,
        forge(f"{unit}, 'QUEUED', 'FAILED', 'worker:w', 1, {THEN}"),
        forge(f"{unit}, 'FAILED', NULL, 'worker:w', 1, {THEN}"),
        forge(f"{unit}, NULL, 'QUEUED', 'robot:r', (SELECT version FROM invoice), {THEN}"),
        forge(f"'invoice', 'x', NULL, NULL, 'prune:none', 1, {THEN}"),
        forge(f"'nonsense', 'x', NULL, 'new', 'me', 1, {THEN}"),
        *on,
    ):
        hand.type(sql)
    assert sick(ledger_url) == {"pairs", "contiguous", "permits"}
    text = said(ledger_url, "pairs")
    assert "QUEUED -> FAILED by worker, which is not legal" in text
    assert "nonsense:x 1 history row says born -> new by me, and there is no such machine" in text
    assert "history row 3 is a death without a permit" in said(ledger_url, "permits")
    assert "history row 5 is a baseline without a permit" in said(ledger_url, "permits")


def test_an_edge_pulled_by_somebody_else(hand, ledger_url):
    born(hand)
    hand.type("UPDATE invoice SET status = 'SENDING', version = version + 1, changed_by = 'operator:jo'")
    assert "QUEUED -> SENDING by operator, which is only for worker" in said(ledger_url, "pairs")


@pytest.mark.parametrize("name", ["prune", "prune:p1"])
def test_nobody_hides_behind_the_name_of_pruning(hand, ledger_url, name):
    born(hand)
    hand.prune()  # p1 is a permit that was given
    hand.type(f"UPDATE invoice SET status = 'SENDING', version = version + 1, changed_by = '{name}'")
    off, on = switched(hand, "invoice", "penstock_invoice_guard")
    moved = f"UPDATE invoice SET status = 'QUEUED', version = version + 1, changed_by = '{name}', attempts = 1"
    for sql in (moved, *off, moved.replace("QUEUED", "SENT").replace("attempts = 1", "remote_id = 'x'"), *on):
        hand.type(sql)
    text = said(ledger_url, "pairs")
    assert "QUEUED -> SENDING by prune, which is only for worker" in text
    assert "QUEUED -> SENT by prune, which is not legal" in text


@pytest.mark.parametrize("column", ["version", "wakes"])
def test_a_count_that_cannot_rise_any_more(hand, ledger_url, column):
    born(hand)
    hand.type(f"UPDATE invoice SET {column} = 9223372036854775807")
    assert said(ledger_url, "constraints") == f"invoice 1 row breaks the check {column}_can_rise, the first is acme/1"


@pytest.mark.parametrize("value", ["'abc'", "x'00'", "version + 0.5"])
def test_a_version_that_is_no_number_is_refused(sqlite_hand, value):
    born(sqlite_hand)
    assert "INTEGER column invoice.version" in sqlite_hand.refused(f"UPDATE invoice SET version = {value}")


def test_a_table_that_keeps_any_value_and_what_it_kept(sqlite_hand, tmp_path):
    """Somebody made the table anew, and left a word out."""
    born(sqlite_hand)
    sqlite_hand.type("PRAGMA writable_schema = ON")
    unstrict = "replace(sql, ',' || char(10) || ' STRICT', '')"
    sqlite_hand.type(f"UPDATE sqlite_schema SET sql = {unstrict} WHERE name = 'invoice'")
    sqlite_hand.type("PRAGMA writable_schema = RESET")
    sqlite_hand.type("UPDATE invoice SET version = 'abc'")
    text = said(f"sqlite:///{tmp_path / 'penstock.db'}", "constraints")
    assert "the check version_is_whole" in text
    assert "invoice its table is not STRICT: SQLite keeps any value in any of its columns" in text


def test_what_is_pruned_by_hand_is_sound_but_not_counted(hand, ledger_url):
    born(hand)
    hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
    hand.prune("DELETE FROM invoice")
    assert sick(ledger_url) == set()
    hand.prune("DELETE FROM transition_log WHERE seq < 3", permit="p2")
    assert sick(ledger_url) == {"flow"}


def test_rows_that_slipped_past_their_checks(sqlite_hand, tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    born(sqlite_hand)
    sqlite_hand.type("PRAGMA ignore_check_constraints = ON")
    sqlite_hand.type("PRAGMA foreign_keys = OFF")
    sqlite_hand.type("UPDATE invoice SET due_at = 'tomorrow', gate_id = 'nowhere'")
    sqlite_hand.type("INSERT INTO gate (gate_id, next_at) VALUES ('g', 'soon')")
    assert sick(url) == {"constraints", "claims", "gates"}
    text = said(url, "constraints")
    assert "invoice 1 row breaks the check invoice_due_at_is_instant, the first is acme/1" in text
    assert "gate 1 row breaks the check gate_next_at_is_instant, the first is g" in text
    assert "invoice 1 rows point to nothing in gate" in text


def test_a_check_that_was_dropped_and_added_without_a_look(postgres_hand, postgres_url):
    born(postgres_hand)
    for sql in (
        "ALTER TABLE invoice DROP CONSTRAINT invoice_due_at_is_instant",
        "UPDATE invoice SET due_at = 'infinity'",
        "ALTER TABLE invoice ADD CONSTRAINT invoice_due_at_is_instant CHECK (due_at < '10000-01-01 UTC') NOT VALID",
    ):
        postgres_hand.type(sql)
    assert "invoice 1 row breaks the check invoice_due_at_is_instant" in said(postgres_url, "constraints")


def test_a_foreign_trigger_is_found(hand, ledger_url):
    if hand.dialect == "sqlite":
        hand.type("CREATE TRIGGER mine AFTER UPDATE ON invoice BEGIN SELECT 1; END")
    else:
        hand.type("CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        hand.type("CREATE TRIGGER mine BEFORE UPDATE ON invoice FOR EACH ROW EXECUTE FUNCTION mine()")
    assert said(ledger_url, "triggers") == "mine is a trigger of invoice that Penstock did not make; drop it"


def test_a_foreign_trigger_is_found_however_its_table_was_typed(sqlite_hand, tmp_path):
    sqlite_hand.type('CREATE TRIGGER mine AFTER UPDATE ON "Invoice" BEGIN SELECT 1; END')
    assert "mine is a trigger of Invoice" in said(f"sqlite:///{tmp_path / 'penstock.db'}", "triggers")


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("CREATE RULE mine AS ON UPDATE TO invoice DO INSTEAD NOTHING", "invoice the rule mine rewrites statements"),
        ("CREATE TABLE mine () INHERITS (invoice)", "invoice mine inherits from it"),
        ("ALTER TABLE invoice ENABLE ROW LEVEL SECURITY", "invoice row security hides some of its rows"),
        ("ALTER TABLE invoice DISABLE TRIGGER ALL", "invoice its foreign keys are switched off"),
        (
            "ALTER FUNCTION penstock_invoice_birth() SET search_path = public",
            "penstock_invoice_birth has a function with",
        ),
        (
            "ALTER FUNCTION penstock_invoice_birth() RESET ALL",
            "penstock_invoice_birth has a function with other settings",
        ),
        (
            "ALTER FUNCTION penstock_invoice_birth() SECURITY INVOKER",
            "does not run with the rights of the ledger's owner",
        ),
        ("GRANT EXECUTE ON FUNCTION penstock_invoice_birth() TO PUBLIC", "has a function that anybody may call"),
    ],
)
def test_what_stands_between_a_table_and_its_statements_is_found(postgres_hand, postgres_url, sql, text):
    postgres_hand.type(sql)
    assert text in said(postgres_url, "triggers")


def test_a_schema_in_which_anybody_may_create_is_told_of(postgres_hand, postgres_url):
    assert said(postgres_url, "triggers") == ""
    postgres_hand.type("GRANT CREATE ON SCHEMA public TO PUBLIC")
    assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in said(postgres_url, "triggers")
    postgres_hand.type("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    postgres_hand.type("GRANT CREATE ON SCHEMA public TO pg_monitor")
    assert "pg_monitor may create what stands in for something else" in said(postgres_url, "triggers")
    assert sick(postgres_url) == set()


def switched(hand: Hand, table: str, trigger: str) -> tuple[list[str], list[str]]:
    """Statements that switch a trigger off, and on again as it was."""
    if hand.dialect == "sqlite":
        ((sql,),) = hand.type(f"SELECT sql FROM sqlite_master WHERE name = '{trigger}'")
        return [f"DROP TRIGGER {trigger}"], [sql]
    alter = f"ALTER TABLE {table} {{}} TRIGGER {trigger}"
    return [alter.format("DISABLE")], [alter.format("ENABLE ALWAYS")]


# PostgreSQL: schemas and roles.


def test_a_function_of_somebody_elses_stands_in_for_none(postgres_url):
    """One that fits its arguments better would be taken before PostgreSQL's own, if it could be seen."""
    with Hand(postgres_url) as hand:
        hand.type(
            "CREATE FUNCTION jsonb_build_object(text, text, text, bigint, text, bigint) RETURNS jsonb"
            ' LANGUAGE sql AS $$ SELECT \'{"current_run_id": "forged"}\'::jsonb $$'
        )
        Ledger.open(postgres_url, MACHINES, create=True).close()
        hand.type(typed_insert(PARTITION, partition(current_run_id="r1")))
        ((data,),) = hand.type("SELECT data FROM transition_log")
        assert data["current_run_id"] == "r1"


def test_two_ledgers_in_one_database_do_not_see_each_other(postgres_url):
    urls = [f"{postgres_url}?options=-csearch_path%3D{schema}" for schema in ("one", "two")]
    with Hand(postgres_url) as hand:
        for schema, url in zip(("one", "two"), urls, strict=True):
            hand.type(f"CREATE SCHEMA {schema}")
            Ledger.open(url, MACHINES, create=True).close()
        assert [sick(url) for url in urls] == [set(), set()]
        hand.type("DROP TRIGGER penstock_invoice_guard ON one.invoice")
        hand.type("CREATE RULE mine AS ON DELETE TO two.feeds DO INSTEAD NOTHING")
        assert said(urls[0], "triggers") == "penstock_invoice_guard is missing; run 'penstock db upgrade'"
        assert "the rule mine" in said(urls[1], "triggers")


def test_a_role_that_writes_units_cannot_write_their_history(postgres_hand, postgres_url):
    """Its moves are logged all the same: triggers have the rights of the ledger's owner."""
    role = f"mover_{postgres_url.rpartition('/')[2][-12:]}"
    postgres_hand.type(f"CREATE ROLE {role}")
    try:
        postgres_hand.type(f"GRANT SELECT, INSERT, UPDATE, DELETE ON invoice TO {role}")
        postgres_hand.type(f"GRANT SELECT ON gate, transition_log TO {role}")
        postgres_hand.type(f"GRANT CREATE ON SCHEMA public TO {role}")
        postgres_hand.type(f"SET ROLE {role}")
        born(postgres_hand)
        postgres_hand.type(typed_move(INVOICE, "acme/1", "SENDING"))
        assert [row[:2] for row in postgres_hand.log()] == [(None, "QUEUED"), ("QUEUED", "SENDING")]
        with pytest.raises(psycopg.Error, match="a unit is never deleted"):
            postgres_hand.type("DELETE FROM invoice")
        postgres_hand.type("CREATE TABLE mine (LIKE invoice)")
        for sql in (
            forge(f"'invoice', 'acme/1', 'SENDING', NULL, 'me', 1, {THEN}"),
            f"INSERT INTO prune_permit VALUES ('p', 'invoice', 'me', 'x', {THEN}, pg_current_xact_id()::text)",
            "CREATE TRIGGER mine BEFORE INSERT ON mine EXECUTE FUNCTION penstock_invoice_birth()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                postgres_hand.type(sql)
    finally:
        postgres_hand.type("RESET ROLE")
        postgres_hand.type(f"DROP OWNED BY {role}")
        postgres_hand.type(f"DROP ROLE {role}")


# Definitions that changed.


def test_what_a_former_definition_allowed_may_stay_in_the_history(ledger_url):
    edges = [*INVOICE.edges, Edge("QUEUED", "FAILED", "dropped", {Actor.OPERATOR})]
    before = Machine(
        "invoice", Invoice, {"QUEUED": {Actor.API}}, edges, INVOICE.terminal, INVOICE.on_error, INVOICE.checks
    )
    after = Machine(
        "invoice",
        Invoice,
        {"QUEUED": {Actor.OPERATOR}},
        INVOICE.edges,
        INVOICE.terminal,
        INVOICE.on_error,
        INVOICE.checks,
    )
    with Ledger.open(ledger_url, [before], create=True) as ledger:
        ledger.birth([invoice("1")], actor=Actor.API, who="test")
        ledger.move(Ref("invoice", "acme/1"), "FAILED", actor=Actor.OPERATOR, who="jo", reason="no")
    with Ledger.open(ledger_url, [after], create=True) as ledger, Hand(ledger_url) as hand:
        assert examine(ledger.database, ledger.machines) == []
        with pytest.raises(IllegalMove):
            ledger.birth([invoice("2")], actor=Actor.API, who="test")
        hand.type(
            "UPDATE machine_definition SET definition = replace(CAST(definition AS text), 'retry_by_hand', 'x')"
            + ("::jsonb" if hand.dialect == "postgresql" else "")
        )
        assert [f.check for f in examine(ledger.database, ledger.machines)] == ["definitions"]


def test_programs_that_share_a_ledger_guard_each_others_history(ledger_url):
    """The guard of the history knows every machine that the ledger holds, whoever upgraded it last."""
    for machine in (INVOICE, PARTITION):
        Ledger.open(ledger_url, [machine], create=True).close()
    with Hand(ledger_url) as hand:
        born(hand)
        hand.type(typed_insert(PARTITION, partition()))
        assert len(hand.log()) == 2
    for machine in (INVOICE, PARTITION):
        with Ledger.open(ledger_url, [machine]) as ledger:
            assert {f.check for f in examine(ledger.database, ledger.machines)} <= {"validated"}
