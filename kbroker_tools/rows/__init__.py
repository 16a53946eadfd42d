"""Rows of the internal topics and of the metadata log: code that decodes, replays and follows them."""
