"""What the internal topics and the metadata log hold, row by row."""
