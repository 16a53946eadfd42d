"""The broker of a test."""
from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kbroker.base.errors import KafkaError
from kbroker.client import NewTopic, Producer
from kbroker.client.producer import Headers
from kbroker.testing.keeper import DEFAULT_LISTENERS, spec_of
from kbroker.testing.process import Process
from kbroker.testing.questions import CLIENT_ID, FoundRecord, IsolationLevel, Questions

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class Broker:
    """A broker in a process of its own, on free ports of 127.0.0.1, with a fresh directory.

    The constructor returns when the broker serves requests. `close`, or the end of a `with` block, ends the broker and
    removes its directory. All methods block; from asyncio, call them with `asyncio.to_thread`. Several threads may use
    one broker.

    `data_dir` is an existing log directory to serve, which stays; `settings` has settings of the broker under Kafka's
    names. `listeners` maps the name of each listener to its security protocol.
    """

    def __init__(self, *, data_dir: Path | str | None = None, settings: Mapping[str, str] = NO_SETTINGS,
                 listeners: Mapping[str, str] = DEFAULT_LISTENERS):
        self._process = Process(spec_of(None if data_dir is None else str(Path(data_dir).absolute()), dict(listeners),
                                        dict(settings)))
        self._listeners = dict(listeners)
        self._questions = Questions(self.bootstrap_servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of the first listener."""
        return self.address(next(iter(self._listeners)))

    def address(self, listener: str) -> str:
        """Return HOST:PORT of a listener."""
        return f'127.0.0.1:{self._process.ports[listener]}'

    @property
    def data_dir(self) -> Path:
        """The log directory."""
        return self._process.data_dir

    @property
    def log_path(self) -> Path:
        """The file with the broker's log, as JSON lines."""
        return self._process.log_path

    @property
    def pid(self) -> int:
        """The id of the process that serves now, or served last."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    # ---- the process

    def start(self) -> None:
        """Start the broker again after `stop` or `kill`: the same directory, the same ports."""
        self._process.start()

    def stop(self) -> None:
        """Stop the broker cleanly. The directory stays."""
        self._process.end_by(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, and wait for its end. The directory stays."""
        self._process.end_by(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: it keeps its connections, and answers nothing until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the broker, release its ports, and remove its directory unless the test gave the directory."""
        self._process.close()

    # ---- topics and records

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        """Create a topic. Raise KafkaError."""
        with self._questions.admin() as admin:
            _raise_first(admin.create_topics([NewTopic(name, partitions, configs=dict(settings))]))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raise KafkaError."""
        with self._questions.admin() as admin:
            _raise_first(admin.delete_topics([name]))

    def send(self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None,
             headers: Headers = ()) -> None:
        """Write a record, and return when it is durable."""
        with Producer(self.bootstrap_servers, client_id=CLIENT_ID) as producer:
            producer.send(topic, value, key, headers, partition=partition)
            producer.flush()

    def values(self, topic: str, isolation: IsolationLevel = 'read_committed') -> list[bytes | None]:
        """Return the values of all records of a topic, in the order of partitions and offsets."""
        return [record.value for record in self.records(topic, isolation)]

    def records(self, topic: str, isolation: IsolationLevel = 'read_committed') -> list[FoundRecord]:
        """Return all records of a topic, in the order of partitions and offsets."""
        return self._questions.records(topic, isolation)


def _raise_first(results: Mapping[str, KafkaError | None]) -> None:
    for error in results.values():
        if error is not None:
            raise error
