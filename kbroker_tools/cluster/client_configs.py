"""The part of kbroker-configs for clients: quotas and SCRAM credentials of users, client ids and IP addresses."""
from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.scram_credential import (
    DEFAULT_ITERATIONS,
    LEAST_ITERATIONS,
    MECHANISM_CODES,
    MOST_ITERATIONS,
)
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output

if TYPE_CHECKING:
    from kbroker.client.admin import ScramCredentialUpsertion
    from kbroker.client.descriptions import ScramCredentialInfo

DEFAULT = ''
"""The name that stands for the default entity of a type."""


class ClientType(NamedTuple):
    """A type of client entity. It has the name of the type in the protocol, and the name in the output of
    kafka-configs."""

    kind: str
    title: str


TYPES = {'users': ClientType('user', 'user-principal'), 'clients': ClientType('client-id', 'client-id'),
         'ips': ClientType('ip', 'ip')}
SHORTCUTS = {'user': 'users', 'client': 'clients', 'ip': 'ips'}
DEFAULT_SHORTCUTS = {'user_defaults': 'users', 'client_defaults': 'clients', 'ip_defaults': 'ips'}
ORDER = [entity_type.kind for entity_type in TYPES.values()]
PASSWORD = re.compile(r'(?:iterations=(\d{1,9}),)?password=(.*)', re.DOTALL)

Wanted = dict[str, str | None]
"""Maps each type of the wanted entities (a word of TYPES) to a name. None means any name, and '' the default entity."""
Entity = tuple[tuple[str, str | None], ...]


def wanted_entity(options: dict[str, Any], names: Sequence[str]) -> Wanted | None:
    """Return the entity that the options name, or None if its type is not a client type. Raise click.UsageError if the
    options contradict each other.

    `names` has the values of --entity-name and --entity-default, in the order of the command line.
    """
    words = options['entity_type']
    wanted: Wanted = {}
    for word, name in [*zip(words, [*names, *[None] * len(words)], strict=False),
                       *((word, options[option]) for option, word in SHORTCUTS.items() if options[option] is not None),
                       *((word, DEFAULT) for option, word in DEFAULT_SHORTCUTS.items() if options[option])]:
        if word in wanted:
            raise click.UsageError(f'found {word} twice, expected once')
        wanted[word] = name
    if not wanted.keys() & TYPES.keys():
        return None
    strange = [word for word in wanted if word not in TYPES]
    if strange or ('ips' in wanted and len(wanted) > 1):
        raise click.UsageError(f'found {" and ".join(wanted)}; only users and clients go together')
    if len(names) > len(words):
        raise click.UsageError(f'found {len(names)} names of {len(words)} types')
    return wanted


# ---- describe

def describe(view: Any, output: Output, wanted: Wanted) -> None:
    """Print the quotas of the wanted entities. Also print SCRAM credentials if only users are wanted."""
    found = view.admin.describe_client_quotas(components_of(wanted), strict=True) if view.is_live else {
        entity: quotas for entity, quotas in metadata_of(view).client_quotas.items() if matches(entity, wanted)}
    for entity in sorted(found, key=lambda entity: [name or '' for _, name in entity]):
        show_quotas(output, entity, found[entity])
    if list(wanted) == ['users'] and wanted['users'] != DEFAULT:
        name = wanted['users']
        credentials = view.admin.describe_scram_credentials(None if name is None else [name]) if view.is_live else (
            offline_credentials(view, name))
        for user in sorted(credentials):
            show_credentials(output, user, credentials[user])


def components_of(wanted: Wanted) -> list[tuple[str, str | None, bool]]:
    """Return (type, name, is any) for each type. A name of None means any name if `is any` is True, and otherwise the
    default entity."""
    return [(TYPES[word].kind, name or None, name is None) for word, name in wanted.items()]


def matches(entity: Entity, wanted: Wanted) -> bool:
    names = dict(entity)
    return names.keys() == {TYPES[word].kind for word in wanted} and all(
        name is None or names[TYPES[word].kind] == (name or None) for word, name in wanted.items())


def metadata_of(view: Any) -> Any:
    if view.metadata is None:
        raise ToolError(f'{view.place}: found no readable metadata log (__cluster_metadata-0)')
    return view.metadata


def offline_credentials(view: Any, wanted: str | None) -> dict[str, list[ScramCredentialInfo]]:
    from kbroker.client.description_rows import scram_credential_of
    found: dict[str, list[ScramCredentialInfo]] = {}
    for (user, mechanism), credential in sorted(metadata_of(view).scram_credentials.items()):
        if wanted in (None, user):
            found.setdefault(user, []).append(scram_credential_of(mechanism, credential.iterations))
    return found


def in_order(entity: Entity) -> list[tuple[str, str | None]]:
    return sorted(entity, key=lambda part: ORDER.index(part[0]) if part[0] in ORDER else len(ORDER))


def show_quotas(output: Output, entity: Entity, quotas: dict[str, float]) -> None:
    from kbroker.protocol.json import double_text

    if output.as_json:
        output.row({'entity': dict(in_order(entity)), 'quotas': dict(sorted(quotas.items()))})
        return
    titles = {entity_type.kind: entity_type.title for entity_type in TYPES.values()}
    where = ', '.join(f'the default {titles.get(kind, kind)}' if name is None else f"{titles.get(kind, kind)} '{name}'"
                      for kind, name in in_order(entity))
    values = ', '.join(f'{key}={double_text(value)}' for key, value in sorted(quotas.items()))
    output.line(f'Quota configs for {where} are {values}')


def show_credentials(output: Output, user: str, found: list[ScramCredentialInfo] | KafkaError) -> None:
    if isinstance(found, KafkaError):
        if found.code != ErrorCode.RESOURCE_NOT_FOUND:
            raise found
        return
    if output.as_json:
        output.row({'entity': {'user': user}, 'scram': {each.mechanism: each.iterations for each in found}})
        return
    values = ', '.join(f'{each.mechanism}=iterations={each.iterations}' for each in found)
    output.line(f"SCRAM credential configs for user-principal '{user}' are {values}")


# ---- alter

def alter(view: Any, output: Output, wanted: Wanted, changes: dict[str, str | None]) -> None:
    """Change SCRAM credentials first, then quotas. Raise click.UsageError or ToolError if a change is invalid or
    fails."""
    if None in wanted.values():
        raise click.UsageError('--alter needs a name for each type: --entity-name, --entity-default, --user, ...')
    scram = {name: value for name, value in changes.items() if name in MECHANISM_CODES}
    user = wanted.get('users')
    if scram and (not user or len(wanted) > 1):
        raise click.UsageError('SCRAM credentials belong to one user: --entity-type users --entity-name NAME')
    quotas = {name: quota_of(name, value) for name, value in changes.items() if name not in MECHANISM_CODES}
    upsertions = [upsertion(name, value) for name, value in scram.items() if value is not None]
    deletions = [name for name, value in scram.items() if value is None]
    # Brokers refuse a request that changes two mechanisms of the same user.
    for mechanism in deletions:
        raise_error(view.admin.alter_scram_credentials(user, deletions=[mechanism]))
    for credential in upsertions:
        raise_error(view.admin.alter_scram_credentials(user, upsertions=[credential]))
    if quotas:
        entity = [(TYPES[word].kind, name or None) for word, name in wanted.items()]
        raise_error(view.admin.alter_client_quotas(entity, quotas))
    word, name = next(iter(wanted.items()))
    if output.as_json:
        output.row({'entity': {TYPES[word].kind: name or None for word, name in wanted.items()},
                    'changed': sorted(changes)})
    elif name:
        output.line(f'Completed updating config for {word.removesuffix("s")} {name}.')
    else:
        output.line(f'Completed updating default config for {word} in the cluster.')


def raise_error(error: KafkaError | None) -> None:
    if error is not None:
        raise error


def quota_of(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        # The message omits the value. If the user has misspelt a mechanism, the value may be a password.
        raise ToolError(f'{name}: found something else, expected a number') from None


def upsertion(name: str, value: str) -> ScramCredentialUpsertion:
    """Return the credential for a salted password. Error messages omit the value, because it contains the password."""
    from kbroker.client.admin import ScramCredentialUpsertion
    from kbroker.security.scram import new_salt, salted_password

    match = PASSWORD.fullmatch(value)
    if match is None:
        raise ToolError(f'{name}: found a value of another form, expected [iterations=NUMBER,password=PASSWORD] or '
                        '[password=PASSWORD]')
    if not match[2]:
        raise ToolError(f'{name}: found an empty password')
    iterations = int(match[1] or DEFAULT_ITERATIONS)
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise ToolError(f'{name}: found {iterations} iterations, expected {LEAST_ITERATIONS} to {MOST_ITERATIONS}')
    salt = new_salt()
    return ScramCredentialUpsertion(name, iterations, salt, salted_password(name, match[2], salt, iterations))


def names_in_order(arguments: Sequence[str]) -> list[str]:
    """Return the values of --entity-name and --entity-default in the order of the command line. Each value belongs to
    one --entity-type."""
    names = []
    for number, argument in enumerate(arguments):
        if argument == '--entity-default':
            names.append(DEFAULT)
        elif argument.startswith('--entity-name='):
            names.append(argument.partition('=')[2])
        elif argument == '--entity-name' and number + 1 < len(arguments):
            names.append(arguments[number + 1])
    return names
