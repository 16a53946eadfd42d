"""The causes that hold a last stable offset, and their remedies."""
