"""The causes that hold a last stable offset, and the remedy for each cause."""
