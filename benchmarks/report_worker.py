"""`python -m benchmarks.report_worker URL SETTINGS`: a worker of reports, tuned as `penstock up` is."""

from __future__ import annotations

from penstock.app.running import tune_interpreter
from penstock.lifecycles.reports.machine import machine
from tests.support.program import main
from tests.support.reports_worker import flows

if __name__ == "__main__":
    tune_interpreter()
    main([machine], flows)
