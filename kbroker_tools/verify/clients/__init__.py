"""The clients that a run uses, behind one interface."""
