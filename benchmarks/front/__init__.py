"""What a token and a scrape cost the replica's front."""
