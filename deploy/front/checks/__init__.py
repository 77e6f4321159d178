"""What a request may ask for: read, bounded, counted, its grammar tried."""
