"""Reports: datasets that the provider makes on request and restates for weeks, fetched at their offsets."""

from penstock.lifecycles.reports.program import app as app
