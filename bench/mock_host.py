"""The process of a suite of tests in Python, which runs librdkafka's mock broker within itself.

Each line that it reads ends the broker of the preceding test. The line `start` then starts a fresh one, and prints its
address.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator

from confluent_kafka import Producer

LIMIT_S = 60


def addresses(mock: Producer) -> Iterator[str]:
    for broker in mock.list_topics(timeout=LIMIT_S).brokers.values():
        yield f'{broker.host}:{broker.port}'


def main() -> None:
    mock = None
    print('ready', flush=True)
    for line in sys.stdin:
        del mock     # librdkafka ends the broker together with its client
        mock = Producer({'test.mock.num.brokers': 1, 'log_level': 0}) if line.strip() == 'start' else None
        print('ready', *(addresses(mock) if mock is not None else ()), flush=True)


if __name__ == '__main__':
    main()
