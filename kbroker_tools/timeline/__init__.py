"""The timeline of a partition with its transactions, as text or as an HTML page."""
