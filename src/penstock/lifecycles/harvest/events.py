"""What the event log says of watermarks, and how their publication stands."""

from __future__ import annotations

ADVANCED = "harvest.watermark_advanced"
REQUESTED = "harvest.watermark_requested"
PUBLISHED_EVENT = "harvest.watermark_published"
ALERT = "harvest.watermark_unpublished"
ADOPTED = "harvest.watermark_adopted"
OF_WATERMARKS = ADVANCED.removesuffix("advanced")
"""How the keys of these events begin."""

PUBLISHED, UNPUBLISHED, CONFLICT = "published", "unpublished", "conflict"
