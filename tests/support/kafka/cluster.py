"""Nodes of a cluster of Apache Kafka, each a process with its own settings file."""
from __future__ import annotations

import pathlib
import sys

from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, java


class ClusterNode(KafkaProcess):
    """One node of a cluster, as `kafka-server-start.sh FILE` runs it."""

    def __init__(self, file: pathlib.Path, directory: pathlib.Path, address: str, release: str):
        super().__init__(directory, release=release, address=address)
        self._file = file

    def start(self) -> None:
        self.launch(java('kafka.Kafka', str(self._file), log_level='info', release=self.release))


class ConfiguredBroker(BrokerProcess):
    """kbroker, as `kbroker serve --config FILE` runs it."""

    def __init__(self, file: pathlib.Path, directory: pathlib.Path, address: str):
        super().__init__(directory)
        self.address = address
        self._file = file

    def start(self) -> None:
        self.launch([sys.executable, '-m', 'kbroker', 'serve', '--log-json', '--config', str(self._file)])
