"""Harvest: a whole catalogue, split by density, fetched page by page, consolidated and watermarked."""

from penstock.lifecycles.harvest.program import app as app
