"""The timeline of a partition and its transactions, as text or as a page."""
