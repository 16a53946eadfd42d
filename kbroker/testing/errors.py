"""The error of the test kit."""


class BrokerError(Exception):
    """The kit or its broker cannot do what the test asks for. The message has one line, and names the remedy."""
