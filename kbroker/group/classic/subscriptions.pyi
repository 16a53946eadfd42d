"""Types of subscriptions.pyx; the documentation stands there."""
from collections.abc import Generator

from kbroker.group.classic.member import Member

class Subscriptions:
    def read(self, members: list[Member], protocol_name: str) -> Generator[object]: ...
