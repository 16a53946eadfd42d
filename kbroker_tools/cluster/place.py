"""The broker that a command asks, and the client settings for it, if the options do not name them.

They come from the profile of `--profile`; from the variables KBROKER_BOOTSTRAP_SERVER and KBROKER_COMMAND_CONFIG; from
the profile that KBROKER_PROFILE names, or the profile `default`. Without any of these, the broker is 127.0.0.1:9092.
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import warn

DEFAULT_SERVER = '127.0.0.1:9092'
SERVER_VARIABLE, CONFIG_VARIABLE = 'KBROKER_BOOTSTRAP_SERVER', 'KBROKER_COMMAND_CONFIG'
PROFILE_VARIABLE = 'KBROKER_PROFILE'
DEFAULT_PROFILE = 'default'
SERVER_KEY, CONFIG_KEY = 'bootstrap-server', 'command-config'
SERVERS_SETTING = 'bootstrap.servers'
CHOSEN_PROFILE = 'kbroker.profile'
"""The key of the value of --profile in the `meta` of a context. A command of a group also has the option of the group.
"""
CLIENT_SECRETS = ('sasl.password', 'sasl.oauthbearer.client.credentials.client.secret')


class Profile(NamedTuple):
    """A table of the profile file."""

    server: str | None = None
    config: Path | None = None
    source: str = ''
    """The name of the profile and of its file, for messages."""


def remember_profile(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Keep the value of --profile for `fill_in`."""
    if name is not None:
        context.meta[CHOSEN_PROFILE] = name


def fill_in(context: click.Context, _: click.Parameter, server: str | None) -> str | None:
    """Return the address of the broker, and set the parameter `command_config` if it is not given.

    Options of a group apply to its commands, which call this function later. A command that reads a directory asks no
    broker. Raise ToolError if a profile or a file is missing.
    """
    ToolError.hint = ''
    if isinstance(context.command, click.Group) or context.params.get('data_dir') is not None:
        return server
    found_server, server_source, config = find(context.meta.get(CHOSEN_PROFILE), os.environ, server is not None)
    if context.params.get('command_config') is None and config is not None:
        context.params['command_config'] = config
    if server is not None:
        return server
    if found_server is None:
        found_server = _server_in(context.params.get('command_config'))
        if found_server is not None:
            server_source = f'{SERVERS_SETTING} in {context.params["command_config"]}'
    if found_server is None:
        found_server, server_source = DEFAULT_SERVER, 'the default, because neither --bootstrap-server nor ' \
            f'{SERVER_VARIABLE} nor a profile is given'
    ToolError.hint = f'{found_server} is {server_source}'
    return found_server


def find(chosen: str | None, variables: Mapping[str, str],
         is_server_given: bool = False) -> tuple[str | None, str, Path | None]:
    """Return the address of the broker, the source of the address in words, and the file of client settings.

    `chosen` is the value of --profile. The settings of another profile belong to its broker, so they are left out if
    the address is given.
    """
    if chosen is not None:
        profile = read_profile(chosen, variables)
        return profile.server, profile.source, _checked(profile.config, profile.source)
    server, config = variables.get(SERVER_VARIABLE) or None, variables.get(CONFIG_VARIABLE) or None
    path = _checked(None if config is None else Path(config), CONFIG_VARIABLE)
    if server is not None or is_server_given:
        return server, f'the value of {SERVER_VARIABLE}', path
    name = variables.get(PROFILE_VARIABLE)
    profile = read_profile(name or DEFAULT_PROFILE, variables, is_needed=bool(name))
    return profile.server, profile.source, path or _checked(profile.config, profile.source)


def profile_file(variables: Mapping[str, str]) -> Path:
    """Return the path of the profile file. The file may be missing."""
    place = variables.get('XDG_CONFIG_HOME') or os.path.join(os.path.expanduser('~'), '.config')
    return Path(place) / 'kbroker' / 'profiles.toml'


def read_profile(name: str, variables: Mapping[str, str], is_needed: bool = True) -> Profile:
    """Return a profile. A relative path in it starts at the directory of the file.

    Raise ToolError if the profile is malformed, or if it is missing and `is_needed`.
    """
    file = profile_file(variables)
    tables = _read_tables(file)
    table = tables.get(name)
    if table is None:
        if not is_needed:
            return Profile()
        from kbroker.base.suggestions import did_you_mean  # needed only after a mistake
        found = f'no profile {name!r} in it' if file.exists() else 'no such file'
        raise ToolError(f'{file}: found {found}, expected a table [{name}] with {SERVER_KEY} = "HOST:PORT"'
                        f'{did_you_mean(name, tables)}')
    for key, value in table.items():
        if key not in (SERVER_KEY, CONFIG_KEY):
            raise ToolError(f'{file}: profile {name!r}: found {key!r}, expected {SERVER_KEY} and {CONFIG_KEY}; client '
                            f'settings belong into the file that {CONFIG_KEY} names')
        if not isinstance(value, str) or not value:
            raise ToolError(f'{file}: profile {name!r}: found {key} = {value!r}, expected a text in quotes')
    config = table.get(CONFIG_KEY)
    return Profile(table.get(SERVER_KEY), None if config is None else file.parent / Path(config).expanduser(),
                   f'that of the profile {name!r} in {file}')


def _read_tables(file: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of the file, or {} if there is no file. Raise ToolError for a file that is malformed."""
    import tomllib  # only a profile needs it
    try:
        found = tomllib.loads(file.read_text(encoding='utf-8'))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ToolError(f'{file}: found no TOML: {error}') from None
    for name, table in found.items():
        if not isinstance(table, dict):
            raise ToolError(f'{file}: found {name} outside of a table, expected a table for each profile, such as '
                            f'[{DEFAULT_PROFILE}]')
    return found


def _checked(config: Path | None, source: str) -> Path | None:
    """Return the path. Warn if other users may read secrets in the file. Raise ToolError if there is no such file."""
    if config is None:
        return None
    if not config.is_file():
        raise ToolError(f'{config}: found no file, expected client settings, because it is {source}')
    from kbroker.client.config import read_client_file
    from kbroker.settings.file_modes import check_secret_file, holds_secrets
    names = read_client_file(config)
    if holds_secrets(names) or any(name in CLIENT_SECRETS for name in names):
        for warning in check_secret_file(str(config), 'the passwords in it', is_allowed=True):
            warn(warning)
    return config


def _server_in(config: Path | None) -> str | None:
    """Return the address in a file of client settings, or None."""
    if config is None:
        return None
    from kbroker.client.config import read_client_file
    return read_client_file(config).get(SERVERS_SETTING)
