"""A picture of a partition and its transactions."""
