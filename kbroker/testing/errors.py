"""The errors of the test kit."""


class BrokerError(Exception):
    """The kit or its broker cannot do what the test asks for. The message names the remedy."""


class NotReachedError(AssertionError):
    """A state or a step that the test expects was not reached. The message has what was found instead."""
