-- The SQL of the specification, statement by statement as it is printed there. A line that begins with "-- name:" names
-- the statement that follows; a test runs each on PostgreSQL with only literals and $names substituted.

-- name: ddl_run_metadata
CREATE TABLE run_metadata (
  run_id UUID PRIMARY KEY,
  run_type TEXT NOT NULL,                    -- 'full' | 'incremental'
  expected_workers INTEGER NOT NULL,
  completed_workers INTEGER DEFAULT 0,
  failed_workers INTEGER DEFAULT 0,
  watermark_before TIMESTAMP WITH TIME ZONE, -- nullable for first run
  watermark_after TIMESTAMP WITH TIME ZONE,  -- set on completion
  started_at TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
  completed_at TIMESTAMP WITH TIME ZONE      -- NULL until consolidation completes
);

-- name: ddl_worker_runs
CREATE TABLE worker_runs (
  id UUID PRIMARY KEY,
  run_id UUID NOT NULL REFERENCES run_metadata(run_id),
  partition_id TEXT NOT NULL,
  worker_id TEXT NOT NULL,
  status TEXT NOT NULL,               -- 'running' | 'completed' | 'failed'
  records_processed INTEGER DEFAULT 0,
  error_message TEXT,
  work_item_payload JSONB,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
  completed_at TIMESTAMP WITH TIME ZONE,
  UNIQUE(run_id, partition_id)       -- Only one worker per partition
);

-- name: ddl_partition_progress
CREATE TABLE partition_progress (
  run_id UUID NOT NULL,
  partition_id TEXT NOT NULL,
  next_offset INTEGER NOT NULL DEFAULT 0,  -- Next page to process
  completed BOOLEAN NOT NULL DEFAULT FALSE,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
  updated_at TIMESTAMP WITH TIME ZONE DEFAULT NOW(),
  PRIMARY KEY (run_id, partition_id)
);

-- name: offset_update
-- Idempotent offset update
UPDATE partition_progress
SET next_offset = $newOffset,
    updated_at = NOW()
WHERE run_id = $runId
  AND partition_id = $partitionId
  AND next_offset = $expectedOffset  -- CAS: only update if matches
  AND NOT completed;

-- name: increment_completed
-- Increment completed workers (atomic)
UPDATE run_metadata
SET completed_workers = completed_workers + 1
WHERE run_id = $runId
RETURNING completed_workers, expected_workers, failed_workers;

-- name: increment_failed
-- Increment failed workers (atomic)
UPDATE run_metadata
SET failed_workers = failed_workers + 1
WHERE run_id = $runId
RETURNING completed_workers, expected_workers, failed_workers;

-- name: run_status
-- Get current run status
SELECT
  run_id,
  run_type,
  completed_workers || '/' || expected_workers AS progress,
  failed_workers,
  CASE
    WHEN completed_at IS NOT NULL THEN 'completed'
    WHEN failed_workers > 0 THEN 'failed'
    WHEN completed_workers < expected_workers THEN 'in_progress'
    ELSE 'consolidating'
  END AS status,
  started_at,
  completed_at,
  EXTRACT(EPOCH FROM (COALESCE(completed_at, NOW()) - started_at)) / 60 AS duration_minutes
FROM run_metadata
WHERE run_id = 'abc123';

-- name: worker_breakdown
-- Get worker breakdown
SELECT
  partition_id,
  status,
  records_processed,
  error_message,
  started_at,
  completed_at
FROM worker_runs
WHERE run_id = 'abc123'
ORDER BY partition_id;

-- name: partition_progress
-- Get partition progress
SELECT
  partition_id,
  next_offset,
  completed,
  updated_at
FROM partition_progress
WHERE run_id = 'abc123'
ORDER BY partition_id;

-- name: active_runs
-- Active runs
SELECT
  run_id,
  run_type,
  completed_workers,
  expected_workers,
  failed_workers,
  started_at,
  NOW() - started_at AS elapsed
FROM run_metadata
WHERE completed_at IS NULL
ORDER BY started_at DESC;

-- name: recent_runs
-- Recent runs (last 24 hours)
SELECT
  run_id,
  run_type,
  completed_workers || '/' || expected_workers AS progress,
  CASE
    WHEN completed_at IS NOT NULL THEN 'completed'
    WHEN failed_workers > 0 THEN 'failed'
    ELSE 'in_progress'
  END AS status,
  started_at,
  completed_at,
  EXTRACT(EPOCH FROM (COALESCE(completed_at, NOW()) - started_at)) / 60 AS duration_minutes
FROM run_metadata
WHERE started_at > NOW() - INTERVAL '24 hours'
ORDER BY started_at DESC;

-- name: failed_workers
-- Find failed workers
SELECT
  wr.partition_id,
  wr.records_processed,
  wr.error_message,
  wr.started_at,
  wr.completed_at
FROM worker_runs wr
JOIN run_metadata rm ON wr.run_id = rm.run_id
WHERE rm.run_id = 'abc123'
  AND wr.status = 'failed'
ORDER BY wr.started_at;

-- name: progress_at_failure
-- Check partition progress at failure
SELECT
  partition_id,
  next_offset,
  completed
FROM partition_progress
WHERE run_id = 'abc123'
  AND NOT completed;
