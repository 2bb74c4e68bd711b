"""Google Ads: queries over REST."""
