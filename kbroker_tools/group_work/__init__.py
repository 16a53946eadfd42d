"""What the command for consumer groups shows and changes."""
