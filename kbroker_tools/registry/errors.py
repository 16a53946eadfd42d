"""The errors of a schema registry and of schemas. Each message is one line, without passwords. Names in a schema may
have line feeds and other control characters, which are escaped."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.base.errors import ConfigError
from kbroker.client.errors import ClientError
from kbroker_tools.base.render import printable


class RegistryError(ConfigError):
    """A setting, a schema or the answer of a registry is wrong. A retry does not help."""

    def __init__(self, message: str, name: str = 'registry'):
        super().__init__(name, printable(message))

    def __reduce__(self) -> tuple[type[RegistryError], tuple[str, str]]:
        return type(self), (str(self), self.name)


class RegistryUnavailable(ClientError):
    """The registry does not answer, or fails. A retry may help."""

    def __init__(self, message: str):
        super().__init__(printable(message))


@contextmanager
def unicode_only() -> Iterator[None]:
    """Raise RegistryError for a schema with half of a surrogate pair: JSON can have that, as `\\ud800`, and UTF-8
    cannot."""
    try:
        yield
    except UnicodeEncodeError:
        raise RegistryError('found a schema with half of a surrogate pair, expected Unicode') from None
