"""The errors of a schema registry and of schemas. Each message is one line, without passwords."""
from __future__ import annotations

from kbroker.base.errors import ConfigError
from kbroker.client.errors import ClientError


class RegistryError(ConfigError):
    """A setting, a schema or the answer of a registry is wrong. A retry does not help."""

    def __init__(self, message: str, name: str = 'registry'):
        super().__init__(name, message)

    def __reduce__(self) -> tuple[type[RegistryError], tuple[str, str]]:
        return type(self), (str(self), self.name)


class RegistryUnavailable(ClientError):
    """The registry does not answer, or fails. A retry may help."""
