"""Types of topic.pyx, which has the documentation."""
from typing import Any

from kbroker.settings.topic_config import LogConfig
from kbroker.topics.partition import Partition

class Topic:
    config: LogConfig
    metadata: Any
    overrides: dict[str, str]
    produce_rules: Any
    @property
    def name(self) -> str: ...
    @property
    def encoded_name(self) -> bytes: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> list[Partition]: ...
    @property
    def is_internal(self) -> bool: ...
    def traffic(self) -> tuple[int, int, int, int]: ...
    def __init__(self, name: str, topic_id: bytes, partitions: list[Partition], overrides: dict[str, str],
                 config: LogConfig, is_internal: bool) -> None: ...
