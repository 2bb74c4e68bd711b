"""An erasure: what is known of one offer, one company or one record is removed for good, and never kept again."""
