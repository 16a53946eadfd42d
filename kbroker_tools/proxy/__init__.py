"""A proxy between clients and brokers. It gives clients its own addresses, and disturbs their requests on demand."""
