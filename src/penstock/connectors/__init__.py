"""Connectors: each speaks one API's wire protocol and classifies its errors once."""
