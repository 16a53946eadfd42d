"""Log directories: an empty one, and those that Apache Kafka left."""

from __future__ import annotations

import pathlib
import tarfile
from collections.abc import Callable

import pytest
from metadata_node import DIRECTORIES, Node


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Node:
    return Node(tmp_path / 'data')


@pytest.fixture
def unpack(tmp_path: pathlib.Path) -> Callable[..., Node]:
    """Lay out one of the directories that Apache Kafka left."""

    def lay_out(name: str, **settings: str) -> Node:
        with tarfile.open(DIRECTORIES / f'{name}.tgz') as archive:
            archive.extractall(tmp_path, filter='data')
            roots = sorted({member.split('/')[0] for member in archive.getnames()})
        return Node(tmp_path / roots[0], **settings)

    return lay_out
