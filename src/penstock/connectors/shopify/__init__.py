"""Shopify: the prices of a store, over GraphQL."""
