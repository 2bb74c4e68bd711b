"""The kernel's tables as they were first released.

Text, and not the declarations of `tables.py`: those go on, and this revision must not change with them.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

SQLITE = r"""
CREATE TABLE event_log (
    tenant_id TEXT DEFAULT 'default' NOT NULL,
    event_key TEXT NOT NULL,
    event_type TEXT NOT NULL,
    severity TEXT,
    payload TEXT NOT NULL,
    machine TEXT,
    unit_id TEXT,
    correlation_id TEXT,
    created_at TEXT NOT NULL,
    PRIMARY KEY (tenant_id, event_key),
    CONSTRAINT event_log_severity CHECK (severity IN ('info', 'warning', 'critical'))
)
 WITHOUT ROWID,
 STRICT;

CREATE INDEX event_log_created ON event_log (created_at);

CREATE TABLE gate (
    gate_id TEXT NOT NULL,
    closed_until TEXT,
    closed_reason TEXT,
    throttles INTEGER DEFAULT '0' NOT NULL,
    epoch INTEGER DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    failing_since TEXT,
    next_at TEXT,
    metered INTEGER DEFAULT 0 NOT NULL,
    max_in_flight INTEGER,
    held_by TEXT,
    held_reason TEXT,
    held_at TEXT,
    held_config TEXT,
    noticed TEXT,
    stands TEXT GENERATED ALWAYS AS (CASE WHEN held_by IS NOT NULL THEN 'held' WHEN held_by IS NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS NOT NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS DISTINCT FROM noticed THEN CASE WHEN metered OR throttles > 0 THEN 'shut_asked' ELSE 'shut' END WHEN metered OR throttles > 0 THEN 'asked' ELSE 'open' END) STORED,
    shut_until TEXT GENERATED ALWAYS AS (CASE WHEN held_by IS NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS NOT NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS DISTINCT FROM noticed THEN CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END END) STORED,
    PRIMARY KEY (gate_id),
    CONSTRAINT gate_none_is_open CHECK (gate_id <> 'none' OR (closed_until IS NULL AND next_at IS NULL AND held_by IS NULL AND NOT metered AND throttles = 0 AND failing_since IS NULL)),
    CONSTRAINT gate_closed_until_is_instant CHECK (closed_until IS NULL OR closed_until IS strftime('%Y-%m-%dT%H:%M:%fZ', closed_until)),
    CONSTRAINT gate_next_at_is_instant CHECK (next_at IS NULL OR next_at IS strftime('%Y-%m-%dT%H:%M:%fZ', next_at)),
    CONSTRAINT gate_failing_since_is_instant CHECK (failing_since IS NULL OR failing_since IS strftime('%Y-%m-%dT%H:%M:%fZ', failing_since)),
    CONSTRAINT gate_noticed_is_instant CHECK (noticed IS NULL OR noticed IS strftime('%Y-%m-%dT%H:%M:%fZ', noticed))
)
 STRICT;

CREATE INDEX gate_shut ON gate (stands, shut_until);

CREATE INDEX gate_stands ON gate (stands, gate_id);

CREATE TABLE machine_definition (
    name TEXT NOT NULL,
    table_name TEXT NOT NULL,
    driven INTEGER NOT NULL,
    due_column TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    installed_at TEXT NOT NULL,
    PRIMARY KEY (name)
)
 STRICT;

CREATE TABLE penstock_meta (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
)
 STRICT;

CREATE TABLE prune_permit (
    id TEXT NOT NULL,
    machine TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL,
    open TEXT,
    PRIMARY KEY (id),
    FOREIGN KEY(open) REFERENCES prune_permit (id) DEFERRABLE INITIALLY DEFERRED
)
 WITHOUT ROWID,
 STRICT;

CREATE INDEX prune_permit_open ON prune_permit (machine) WHERE open IS NOT NULL;

CREATE TABLE stage (
    stage_id TEXT NOT NULL,
    machine TEXT NOT NULL,
    unit_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    claimed_by TEXT NOT NULL,
    table_name TEXT NOT NULL,
    row_count INTEGER NOT NULL,
    chunks INTEGER NOT NULL,
    opened_at TEXT NOT NULL,
    sealed_at TEXT,
    loose_at TEXT,
    PRIMARY KEY (stage_id)
)
 WITHOUT ROWID,
 STRICT;

CREATE INDEX stage_of_table ON stage (table_name, stage_id);

CREATE TABLE subscription (
    subscriber TEXT NOT NULL,
    event_type TEXT NOT NULL,
    severity TEXT NOT NULL,
    since TEXT NOT NULL,
    PRIMARY KEY (subscriber, event_type, severity)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE worker (
    id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    boot_id TEXT,
    process TEXT,
    commit_seq INTEGER DEFAULT '0' NOT NULL,
    machines TEXT NOT NULL,
    config_version TEXT,
    reaped_at TEXT,
    stopped_at TEXT,
    charged TEXT,
    PRIMARY KEY (id)
)
 STRICT;

CREATE INDEX worker_live ON worker (id) WHERE reaped_at IS NULL;

CREATE TABLE gate_limit (
    gate_id TEXT NOT NULL,
    name TEXT NOT NULL,
    rate REAL NOT NULL,
    burst REAL NOT NULL,
    cost REAL NOT NULL,
    tokens REAL NOT NULL,
    filled_at TEXT NOT NULL,
    PRIMARY KEY (gate_id, name),
    CONSTRAINT gate_limit_is_possible CHECK (rate > 0 AND burst >= cost AND cost > 0),
    CONSTRAINT limit_filled_at_is_instant CHECK (filled_at IS NULL OR filled_at IS strftime('%Y-%m-%dT%H:%M:%fZ', filled_at)),
    FOREIGN KEY(gate_id) REFERENCES gate (gate_id)
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE flow_hour (
    machine TEXT NOT NULL,
    hour TEXT NOT NULL,
    from_status TEXT NOT NULL,
    to_status TEXT NOT NULL,
    "trigger" TEXT NOT NULL,
    n INTEGER NOT NULL,
    pruned INTEGER DEFAULT '0' NOT NULL,
    PRIMARY KEY (machine, hour, from_status, to_status, "trigger")
)
 WITHOUT ROWID,
 STRICT;

CREATE TABLE gate_log (
    seq INTEGER NOT NULL,
    gate_id TEXT NOT NULL,
    what TEXT NOT NULL,
    at TEXT NOT NULL,
    until TEXT,
    "by" TEXT,
    reason TEXT,
    epoch INTEGER NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT gate_log_what CHECK (what IN ('closed', 'opened', 'probe', 'paused', 'resumed', 'stopped', 'budget')),
    CONSTRAINT gate_log_seq CHECK (seq > 0)
)
 STRICT;

CREATE INDEX gate_log_at ON gate_log (at);

CREATE INDEX gate_log_gate ON gate_log (gate_id, seq);

CREATE TABLE prune_probe (
    id INTEGER NOT NULL,
    parent INTEGER,
    PRIMARY KEY (id),
    FOREIGN KEY(parent) REFERENCES prune_probe (id) ON DELETE CASCADE
)
 STRICT;

CREATE TABLE transition_log (
    seq INTEGER NOT NULL,
    machine TEXT NOT NULL,
    unit_id TEXT NOT NULL,
    from_status TEXT,
    to_status TEXT,
    actor TEXT NOT NULL,
    reason TEXT,
    version INTEGER NOT NULL,
    at TEXT NOT NULL,
    data TEXT,
    action_id TEXT,
    "trigger" TEXT,
    since TEXT,
    PRIMARY KEY (seq),
    CHECK (seq > 0)
)
 STRICT;

CREATE INDEX transition_log_at ON transition_log (at);

CREATE INDEX transition_log_unit ON transition_log (machine, unit_id, seq);
"""

POSTGRESQL = r"""
CREATE TABLE event_log (
    tenant_id TEXT DEFAULT 'default' NOT NULL,
    event_key TEXT NOT NULL,
    event_type TEXT NOT NULL,
    severity TEXT,
    payload JSONB NOT NULL,
    machine TEXT,
    unit_id TEXT,
    correlation_id TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (tenant_id, event_key),
    CONSTRAINT event_log_severity CHECK (severity IN ('info', 'warning', 'critical'))
);

CREATE INDEX event_log_created ON event_log (created_at);

CREATE TABLE gate (
    gate_id TEXT NOT NULL,
    closed_until TIMESTAMP WITH TIME ZONE,
    closed_reason TEXT,
    throttles INTEGER DEFAULT '0' NOT NULL,
    epoch BIGINT DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    failing_since TIMESTAMP WITH TIME ZONE,
    next_at TIMESTAMP WITH TIME ZONE,
    metered BOOLEAN DEFAULT false NOT NULL,
    max_in_flight INTEGER,
    held_by TEXT,
    held_reason TEXT,
    held_at TIMESTAMP WITH TIME ZONE,
    held_config TEXT,
    noticed TIMESTAMP WITH TIME ZONE,
    stands TEXT GENERATED ALWAYS AS (CASE WHEN held_by IS NOT NULL THEN 'held' WHEN held_by IS NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS NOT NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS DISTINCT FROM noticed THEN CASE WHEN metered OR throttles > 0 THEN 'shut_asked' ELSE 'shut' END WHEN metered OR throttles > 0 THEN 'asked' ELSE 'open' END) STORED,
    shut_until TIMESTAMP WITH TIME ZONE GENERATED ALWAYS AS (CASE WHEN held_by IS NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS NOT NULL AND (CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END) IS DISTINCT FROM noticed THEN CASE WHEN closed_until IS NULL OR next_at > closed_until THEN next_at ELSE closed_until END END) STORED,
    PRIMARY KEY (gate_id),
    CONSTRAINT gate_none_is_open CHECK (gate_id <> 'none' OR (closed_until IS NULL AND next_at IS NULL AND held_by IS NULL AND NOT metered AND throttles = 0 AND failing_since IS NULL)),
    CONSTRAINT gate_closed_until_is_instant CHECK (closed_until >= '0001-01-01 UTC' AND closed_until < '10000-01-01 UTC'),
    CONSTRAINT gate_next_at_is_instant CHECK (next_at >= '0001-01-01 UTC' AND next_at < '10000-01-01 UTC'),
    CONSTRAINT gate_failing_since_is_instant CHECK (failing_since >= '0001-01-01 UTC' AND failing_since < '10000-01-01 UTC'),
    CONSTRAINT gate_noticed_is_instant CHECK (noticed >= '0001-01-01 UTC' AND noticed < '10000-01-01 UTC')
);

CREATE INDEX gate_shut ON gate (stands, shut_until);

CREATE INDEX gate_stands ON gate (stands, gate_id);

CREATE TABLE machine_definition (
    name TEXT NOT NULL,
    table_name TEXT NOT NULL,
    driven BOOLEAN NOT NULL,
    due_column TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition JSONB NOT NULL,
    installed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE penstock_meta (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE prune_permit (
    id TEXT NOT NULL,
    machine TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    open TEXT,
    PRIMARY KEY (id),
    FOREIGN KEY(open) REFERENCES prune_permit (id) DEFERRABLE INITIALLY DEFERRED
);

CREATE INDEX prune_permit_open ON prune_permit (machine) WHERE open IS NOT NULL;

CREATE TABLE stage (
    stage_id TEXT NOT NULL,
    machine TEXT NOT NULL,
    unit_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    claimed_by TEXT NOT NULL,
    table_name TEXT NOT NULL,
    row_count BIGINT NOT NULL,
    chunks INTEGER NOT NULL,
    opened_at TIMESTAMP WITH TIME ZONE NOT NULL,
    sealed_at TIMESTAMP WITH TIME ZONE,
    loose_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (stage_id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX stage_of_table ON stage (table_name, stage_id);

CREATE TABLE subscription (
    subscriber TEXT NOT NULL,
    event_type TEXT NOT NULL,
    severity TEXT NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (subscriber, event_type, severity)
);

CREATE TABLE worker (
    id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    boot_id TEXT,
    process TEXT,
    commit_seq BIGINT DEFAULT '0' NOT NULL,
    machines JSONB NOT NULL,
    config_version TEXT,
    reaped_at TIMESTAMP WITH TIME ZONE,
    stopped_at TIMESTAMP WITH TIME ZONE,
    charged TEXT,
    PRIMARY KEY (id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX worker_live ON worker (id) WHERE reaped_at IS NULL;

CREATE TABLE gate_limit (
    gate_id TEXT NOT NULL,
    name TEXT NOT NULL,
    rate DOUBLE PRECISION NOT NULL,
    burst DOUBLE PRECISION NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    tokens DOUBLE PRECISION NOT NULL,
    filled_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (gate_id, name),
    CONSTRAINT gate_limit_is_possible CHECK (rate > 0 AND burst >= cost AND cost > 0),
    CONSTRAINT limit_filled_at_is_instant CHECK (filled_at >= '0001-01-01 UTC' AND filled_at < '10000-01-01 UTC'),
    FOREIGN KEY(gate_id) REFERENCES gate (gate_id)
);

CREATE TABLE flow_hour (
    machine TEXT NOT NULL,
    hour TIMESTAMP WITH TIME ZONE NOT NULL,
    from_status TEXT NOT NULL,
    to_status TEXT NOT NULL,
    trigger TEXT NOT NULL,
    n BIGINT NOT NULL,
    pruned BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (machine, hour, from_status, to_status, trigger)
);

CREATE TABLE gate_log (
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    gate_id TEXT NOT NULL,
    what TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE,
    by TEXT,
    reason TEXT,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT gate_log_what CHECK (what IN ('closed', 'opened', 'probe', 'paused', 'resumed', 'stopped', 'budget'))
);

CREATE INDEX gate_log_at ON gate_log (at);

CREATE INDEX gate_log_gate ON gate_log (gate_id, seq);

CREATE TABLE transition_log (
    seq BIGINT GENERATED ALWAYS AS IDENTITY,
    machine TEXT NOT NULL,
    unit_id TEXT NOT NULL,
    from_status TEXT,
    to_status TEXT,
    actor TEXT NOT NULL,
    reason TEXT,
    version BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    data JSONB,
    action_id TEXT,
    trigger TEXT,
    since TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (machine, unit_id, seq)
);

CREATE INDEX transition_log_at ON transition_log USING brin (at) WITH (autosummarize = on);

CREATE INDEX transition_log_seq ON transition_log USING brin (seq) WITH (autosummarize = on);
"""


def upgrade() -> None:
    """Make them."""
    bind = op.get_bind()
    text = SQLITE if bind.dialect.name == "sqlite" else POSTGRESQL
    for statement in text.strip().removesuffix(";").split(";\n"):
        bind.exec_driver_sql(statement)
