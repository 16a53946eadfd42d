"""kbroker reads and writes the messages of Apache Kafka 4.4.0 with the same bytes."""
from __future__ import annotations

import pathlib

import pytest

from kbroker.protocol import messages
from kbroker.protocol.codec import decode, encode

_LINES = (pathlib.Path(__file__).parent.parent / 'data' / 'kafka_4_4_messages.txt').read_text().splitlines()
VECTORS = dict(zip(_LINES[::2], map(bytes.fromhex, _LINES[1::2]), strict=True))


@pytest.mark.parametrize('title', VECTORS)
def test_a_message_is_read_and_written_to_the_byte(title: str) -> None:
    name, version = title.split(':')[0].split()
    message = decode(getattr(messages, name), VECTORS[title], int(version))
    assert encode(message, int(version)) == VECTORS[title]
