"""The clients that a run drives, behind one interface."""
