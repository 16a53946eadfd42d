"""Lines to records, and records to lines."""
