"""The clients that a run uses. All of them have the same interface."""
