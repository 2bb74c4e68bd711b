-- The tables that the specifications describe, beside those of the harvest, which are in harvest/seed.sql as printed.
-- name: partition_state
CREATE TABLE partition_state (
    source TEXT,
    customer_id TEXT,
    query_name TEXT,
    logical_date DATE,
    status TEXT CHECK (status IN ('pending','success','failed')),
    current_run_id TEXT,
    schema_version TEXT,
    record_count BIGINT,
    updated_at TIMESTAMP WITH TIME ZONE,
    error_message TEXT,
    attempt_count INTEGER DEFAULT 0,
    PRIMARY KEY (source, customer_id, query_name, logical_date)
);

-- name: report_dataset_metadata
-- Described in words: null after processing, one of two values, and so on.
CREATE TABLE report_dataset_metadata (
    report_id TEXT,
    last_processed_report_id TEXT,
    status TEXT NOT NULL,
    refreshing BOOLEAN,
    next_refresh_at TIMESTAMP WITH TIME ZONE,
    last_report_created_at TIMESTAMP WITH TIME ZONE,
    timestamp TIMESTAMP WITH TIME ZONE NOT NULL,
    aggregation TEXT NOT NULL CHECK (aggregation IN ('hourly', 'daily')),
    entity_type TEXT NOT NULL CHECK (entity_type IN ('target', 'product'))
);

-- name: rule_run
-- Named by the code that is printed, and by its invariants.
CREATE TABLE rule_run (
    id UUID PRIMARY KEY,
    tenant_id TEXT NOT NULL DEFAULT 'default',
    project_id TEXT NOT NULL DEFAULT 'default',
    status TEXT NOT NULL,
    queued_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    metadata JSONB NOT NULL
);

-- name: rule_target
CREATE TABLE rule_target (
    rule_run_id UUID NOT NULL,
    id TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts BIGINT NOT NULL DEFAULT '0',
    applied_at TIMESTAMP WITH TIME ZONE,
    before_json JSONB NOT NULL,
    after_json JSONB,
    CHECK (attempts >= 0 AND (attempts <= 3 OR status = 'FAILED')),
    CHECK (status NOT IN ('APPLIED', 'ROLLED_BACK') OR applied_at IS NOT NULL)
);
