"""A segment file, and what stands beside it, as text."""
