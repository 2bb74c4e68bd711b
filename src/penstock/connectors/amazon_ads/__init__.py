"""Amazon Ads: reports by its API, hours by its stream."""
