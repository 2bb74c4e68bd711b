"""Shopify: the prices of a store, over its GraphQL Admin API."""
