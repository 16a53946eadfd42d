"""A partition and its transactions as a picture."""
