"""Sites on either database, and one in which nothing is changed."""

from __future__ import annotations

from tests.support.sites import client, postgres_site, shop_site, site_url, still_client, still_site

__all__ = ["client", "postgres_site", "shop_site", "site_url", "still_client", "still_site"]
