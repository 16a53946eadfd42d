"""Types of newest_connection.pyx: it has no names for Python."""
