"""What holds a last stable offset, and what to do about it."""
