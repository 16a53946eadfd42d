"""Rows of the internal topics and of the metadata log: decoded, replayed and followed."""
