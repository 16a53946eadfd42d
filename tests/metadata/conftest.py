"""Fixtures: an empty log directory, and the directories that Apache Kafka wrote."""

from __future__ import annotations

import pathlib
import tarfile
from collections.abc import Callable

import pytest
from controller_directory import DIRECTORIES, ControllerDirectory, create_topic


@pytest.fixture
def node(tmp_path: pathlib.Path) -> ControllerDirectory:
    return ControllerDirectory(tmp_path / 'data')


@pytest.fixture
def stopped(node: ControllerDirectory) -> ControllerDirectory:
    """Return a directory with the topic `t`, on which a controller was started and stopped."""
    controller = node.start()
    create_topic(controller, 't', 1)
    node.stop(controller)
    return node


@pytest.fixture
def unpack(tmp_path: pathlib.Path) -> Callable[..., ControllerDirectory]:
    """Return a function that unpacks one of the directories that Apache Kafka wrote."""

    def lay_out(name: str, **settings: str) -> ControllerDirectory:
        with tarfile.open(DIRECTORIES / f'{name}.tgz') as archive:
            archive.extractall(tmp_path, filter='data')
            roots = sorted({member.split('/')[0] for member in archive.getnames()})
        return ControllerDirectory(tmp_path / roots[0], **settings)

    return lay_out


@pytest.fixture
def any_group_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let groups have configs of any name and size, for tests of the records in which the controller stores configs."""
    monkeypatch.setattr('kbroker.metadata.config_operations.validate_group_configs', lambda config, overrides: None)
