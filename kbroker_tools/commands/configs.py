"""kbroker-configs. Its options and its output are those of kafka-configs."""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from kbroker.base.errors import KafkaError
from kbroker.client.descriptions import ConfigEntry, ConfigSynonym
from kbroker.settings.rows import Setting, usual_texts
from kbroker_tools.base import actions
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output
from kbroker_tools.cluster import client_configs
from kbroker_tools.cluster.opening import cluster_options, open_view


class EntityType(NamedTuple):
    """A type of entity that has settings. `resource_type` is its number in the protocol. `source` is the source, in the
    protocol, of settings that are set for one entity."""

    word: str
    title: str
    resource_type: int
    source: str | None
    """The source of settings that are set for one entity. None if the type has no other settings."""


ENTITY_TYPES = {entity.word: entity for entity in (
    EntityType('topics', 'topic', 2, 'DYNAMIC_TOPIC_CONFIG'),
    EntityType('brokers', 'broker', 4, 'DYNAMIC_BROKER_CONFIG'),
    EntityType('broker-loggers', 'broker-logger', 8, None),
    EntityType('client-metrics', 'client-metric', 16, 'DYNAMIC_CLIENT_METRICS_CONFIG'),
    EntityType('groups', 'group', 32, 'DYNAMIC_GROUP_CONFIG'))}
FOR_ALL_BROKERS = 'DYNAMIC_DEFAULT_BROKER_CONFIG'
ALL_TYPES = [*ENTITY_TYPES, *client_configs.TYPES]
NAMES = 'kbroker.configs.names'
"""The key in click's context for the names of entities. They are in the order of the command line."""
DEFAULT_NAME = ''
"""The resource name of the settings that apply to all brokers."""
OFFLINE = ('topics', 'brokers', 'groups', 'client-metrics')
MADE_BY_SETTINGS = ('groups', 'client-metrics')
"""The types of entities that exist only if they have settings. Brokers describe an entity that does not exist as one
without settings."""
SHORTCUTS = {'topic': 'topics', 'broker': 'brokers', 'broker_logger': 'broker-loggers', 'group': 'groups',
             'client_metrics': 'client-metrics'}
COLUMNS = (Column('name', 'Name'), Column('value', 'Value'), Column('source', 'Source'))
GROUPED = re.compile(r'([^=,\[\]]+)=(?:\[([^\]]*)\]|([^,\[\]]*))(?:,|$)')


class ConfigsCommand(Command):
    """A command that stores the order in which the names of entities were given."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        context.meta[NAMES] = client_configs.names_in_order(arguments)
        return super().parse_args(context, arguments)


@click.command(cls=ConfigsCommand, context_settings=SETTINGS)
@click.option('--describe', is_flag=True, help='Print settings.')
@click.option('--alter', is_flag=True, help='Change settings.')
@click.option('--entity-type', type=click.Choice(ALL_TYPES), metavar='TYPE', multiple=True,
              help=f'The type of the entity: {", ".join(ALL_TYPES)}. Users and clients may '
                   'be given together.')
@click.option('--entity-name', metavar='NAME', multiple=True,
              help='The topic, the id of the broker, the group, the user, the client id, the IP address ...')
@click.option('--entity-default', is_flag=True,
              help='The settings for all brokers, or the default of users, client ids or IP addresses.')
@click.option('--topic', metavar='NAME', help='Short for --entity-type topics --entity-name NAME.')
@click.option('--broker', metavar='ID', help='Short for --entity-type brokers --entity-name ID.')
@click.option('--broker-defaults', is_flag=True, help='Short for --entity-type brokers --entity-default.')
@click.option('--broker-logger', metavar='ID', help='Short for --entity-type broker-loggers --entity-name ID.')
@click.option('--group', metavar='NAME', help='Short for --entity-type groups --entity-name NAME.')
@click.option('--client-metrics', metavar='NAME', help='Short for --entity-type client-metrics --entity-name NAME.')
@click.option('--user', metavar='NAME', help='Short for --entity-type users --entity-name NAME.')
@click.option('--user-defaults', is_flag=True, help='Short for --entity-type users --entity-default.')
@click.option('--client', metavar='ID', help='Short for --entity-type clients --entity-name ID.')
@click.option('--client-defaults', is_flag=True, help='Short for --entity-type clients --entity-default.')
@click.option('--ip', metavar='ADDRESS', help='Short for --entity-type ips --entity-name ADDRESS.')
@click.option('--ip-defaults', is_flag=True, help='Short for --entity-type ips --entity-default.')
@click.option('--add-config', metavar='NAME=VALUE,...',
              help='Set these. A value with commas stands in square brackets.')
@click.option('--add-config-file', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
              help='Set all settings in a properties file.')
@click.option('--delete-config', metavar='NAME,...', help='Reset these to their defaults.')
@click.option('--all', is_flag=True, help='Print defaults and static settings too.')
@cluster_options
@output_options
@version_option
def main(as_json: bool, **options: Any) -> None:
    """Print and change the settings of topics, brokers and groups, quotas, and SCRAM credentials of users.

    The options and the output are those of kafka-configs; names are sorted. --describe works on a log directory too.
    """
    action = actions.chosen_action(options, ('describe', 'alter'))
    clients = client_configs.wanted_entity(options, click.get_current_context().meta[NAMES])
    entity_type, name = chosen_entity(options) if clients is None else (None, None)
    actions.check_companions(action, options, {
        'all': ('describe',), 'add_config': ('alter',), 'add_config_file': ('alter',), 'delete_config': ('alter',)})
    if action == 'alter':
        actions.require_broker(options, action)
        actions.check_at_most_one(options, ('add_config', 'add_config_file'))
        if clients is None and name is None:
            raise click.UsageError('--alter needs a name: --topic, --broker, --entity-name ...')
        changes = wanted_changes(options)
        view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
        if entity_type is None or name is None:
            client_configs.alter(view, Output(as_json), clients or {}, changes)
        else:
            alter(view, Output(as_json), entity_type, name, changes)
        return
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    if entity_type is None:
        client_configs.describe(view, Output(as_json), clients or {})
    else:
        describe(view, Output(as_json), entity_type, name, options['all'])


def chosen_entity(options: dict[str, Any]) -> tuple[EntityType, str | None]:
    """Return (type, name) of the chosen entity. A name of None means all entities of the type. Raise click.UsageError
    if the options contradict each other."""
    names = ('entity_type', *SHORTCUTS, 'broker_defaults')
    for option in ('entity_type', 'entity_name'):
        if len(options[option]) > 1:
            raise click.UsageError(f'found {" and ".join(options[option])}; only users and clients go together')
    chosen = actions.chosen_action(options, names)
    if chosen != 'entity_type':
        actions.check_at_most_one(options, (chosen, 'entity_name'))
        actions.check_at_most_one(options, (chosen, 'entity_default'))
        if chosen == 'broker_defaults':
            return ENTITY_TYPES['brokers'], DEFAULT_NAME
        entity_type, name = ENTITY_TYPES[SHORTCUTS[chosen]], options[chosen]
    else:
        actions.check_at_most_one(options, ('entity_name', 'entity_default'))
        entity_type, name = ENTITY_TYPES[options['entity_type'][0]], next(iter(options['entity_name']), None)
        if options['entity_default']:
            if entity_type.word != 'brokers':
                raise click.UsageError('--entity-default goes with --entity-type brokers')
            return entity_type, DEFAULT_NAME
    if entity_type.word.startswith('broker') and name is not None and not (name.isascii() and name.isdigit()):
        raise click.UsageError(f'found {name!r}, expected the id of a broker')
    if name == '':
        raise click.UsageError('the name is empty')
    return entity_type, name


# ---- describe

def describe(view: Any, output: Output, entity_type: EntityType, name: str | None, with_all: bool) -> None:
    """Print the settings of the entity. Raise ToolError if the entity was named and does not exist."""
    if not view.is_live and entity_type.word not in OFFLINE:
        raise click.UsageError(f'{entity_type.word} need a broker: give --bootstrap-server')
    if not view.is_live and with_all:
        raise click.UsageError('--all needs a broker, which has the defaults: give --bootstrap-server')
    names = [name] if name is not None else all_entities(view, entity_type)
    for each in names:
        settings = live_settings(view, entity_type, each) if view.is_live else offline_settings(view, entity_type, each)
        if each == DEFAULT_NAME:
            shown = [row for row in settings if row.source == FOR_ALL_BROKERS]
        else:
            shown = [row for row in settings if with_all or entity_type.source in (None, row.source)]
        if not shown and name and entity_type.word in MADE_BY_SETTINGS and name not in all_entities(view, entity_type):
            raise ToolError(f'{view.place}: there is no {entity_type.title} {name}, and it has no settings')
        show(output, entity_type, each, sorted(shown, key=lambda row: row.name), with_all)


def all_entities(view: Any, entity_type: EntityType) -> list[str]:
    if entity_type.word == 'topics':
        return sorted(view.topics())
    if not view.is_live:
        known = {name for kind, name in configs_of(view) if kind == entity_type.resource_type}
        if entity_type.word == 'brokers':
            return [*sorted((known | {str(broker) for broker in view.metadata.brokers}) - {DEFAULT_NAME}), DEFAULT_NAME]
        return sorted(known)
    if entity_type.word in ('brokers', 'broker-loggers'):
        if not view.cluster.nodes:
            view.cluster.refresh(())
        brokers = [str(node_id) for node_id in sorted(view.cluster.nodes)]
        return [*brokers, DEFAULT_NAME] if entity_type.word == 'brokers' else brokers
    configured = {name for _, name in view.admin.list_config_resources([entity_type.resource_type])}
    return sorted(configured | set(view.groups() if entity_type.word == 'groups' else ()))


def live_settings(view: Any, entity_type: EntityType, name: str) -> list[ConfigEntry]:
    from kbroker.client.admin_requests import ResourceType
    resource = (ResourceType(entity_type.resource_type), name)
    found: list[ConfigEntry] | KafkaError = view.admin.describe_configs([resource], include_synonyms=True)[resource]
    if isinstance(found, KafkaError):
        raise found
    return found


def offline_settings(view: Any, entity_type: EntityType, name: str) -> list[ConfigEntry]:
    """Return the dynamic settings in the metadata log, in the form in which a broker describes them. Raise ToolError if
    the topic does not exist."""
    if entity_type.word == 'topics':
        if name not in view.topics():
            raise ToolError(f'{view.place}: there is no topic {name}')
        topic = view.metadata.topics.get(name) if view.metadata is not None else None
        found = topic.configs if topic is not None else {}
    else:
        found = configs_of(view).get((entity_type.resource_type, name), {})
    source = FOR_ALL_BROKERS if name == DEFAULT_NAME else str(entity_type.source)
    usual = usual_texts(found, rows_of(entity_type)) if name != DEFAULT_NAME else found
    sources = found if entity_type.word == 'brokers' else usual
    return [ConfigEntry(key, value, source, synonyms=(ConfigSynonym(key, sources[key], source),))
            for key, value in usual.items()]


def rows_of(entity_type: EntityType) -> dict[str, Setting]:
    """Return {name: setting} for a type of entity. Settings of brokers have no listener prefix."""
    from kbroker.settings import groups as group_settings
    from kbroker.settings import table as settings
    if entity_type.word == 'topics':
        return settings.TOPIC_SETTINGS
    if entity_type.word == 'groups':
        return {name: setting.row for name, setting in group_settings.GROUP_SETTINGS.items()}
    return settings.SETTINGS


def configs_of(view: Any) -> dict[tuple[int, str], dict[str, str]]:
    if view.metadata is None:
        raise ToolError(f'{view.place}: found no readable metadata log (__cluster_metadata-0)')
    configs: dict[tuple[int, str], dict[str, str]] = view.metadata.configs
    return configs


def show(output: Output, entity_type: EntityType, name: str, settings: list[ConfigEntry], with_all: bool) -> None:
    if output.as_json:
        for row in settings:
            output.row({'entity_type': entity_type.word, 'entity_name': name or None, 'name': row.name,
                        'value': row.value, 'source': row.source, 'is_sensitive': row.is_sensitive,
                        'synonyms': [{'name': each.name, 'value': each.value, 'source': each.source}
                                     for each in row.synonyms]})
        return
    if name == DEFAULT_NAME:
        output.line('Default configs for brokers in the cluster are:', style='bold')
    else:
        output.line(f'{"All" if with_all else "Dynamic"} configs for {entity_type.title} {name} are:', style='bold')
    if output.is_terminal:
        if settings:
            output.table(COLUMNS, [(row.name, row.value, row.source) for row in settings])
        return
    for row in settings:
        synonyms = ', '.join(f'{each.source}:{each.name}={_text(each.value)}' for each in row.synonyms)
        output.line(f'  {row.name}={_text(row.value)} sensitive={str(row.is_sensitive).lower()} '
                    f'synonyms={{{synonyms}}}')


def _text(value: str | None) -> str:
    """Return a value as Java prints it. A broker reports no value for a setting that is sensitive or not set."""
    return 'null' if value is None else value


# ---- alter

def wanted_changes(options: dict[str, Any]) -> dict[str, str | None]:
    """Return {name: new value}. A value of None resets the setting to its default. Raise click.UsageError or ToolError
    if an option is wrong."""
    changes: dict[str, str | None] = {}
    if options['add_config'] is not None:
        changes |= parse_settings(options['add_config'])
    if options['add_config_file'] is not None:
        from kbroker.settings.properties import read_properties, read_text
        path = options['add_config_file']
        try:
            changes |= read_properties(read_text(path))[0]
        except ValueError as error:
            reason = 'not UTF-8 text' if isinstance(error, UnicodeDecodeError) else str(error)
            raise ToolError(f'{path}: {reason}') from None
    deleted = [name.strip() for name in (options['delete_config'] or '').split(',') if name.strip()]
    both = sorted(changes.keys() & set(deleted))
    if both:
        raise click.UsageError(f'{", ".join(both)}: found both in the added settings and in --delete-config')
    changes |= dict.fromkeys(deleted)
    if not changes:
        raise click.UsageError('--alter needs --add-config, --add-config-file or --delete-config')
    return changes


def parse_settings(text: str) -> dict[str, str]:
    """Parse a text such as `a=1,b=[x,y],c=` to {name: value}. Raise click.BadParameter if the text has another form."""
    found = {}
    position = 0
    while position < len(text):
        match = GROUPED.match(text, position)
        if match is None:
            # The message omits the text, because it may be a part of a password.
            raise click.BadParameter(f'found something else at character {position + 1}, expected NAME=VALUE,... in '
                                     'which a value with commas stands in square brackets', param_hint='--add-config')
        found[match[1].strip()] = (match[3] if match[2] is None else match[2]).strip()
        position = match.end()
    return found


def alter(view: Any, output: Output, entity_type: EntityType, name: str, changes: dict[str, str | None]) -> None:
    from kbroker.client.admin_requests import ResourceType
    resource = (ResourceType(entity_type.resource_type), name)
    error = view.admin.incremental_alter_configs({resource: list(_operations(changes.items()))})[resource]
    if error is not None:
        raise error
    if output.as_json:
        output.row({'entity_type': entity_type.word, 'entity_name': name or None, 'changed': sorted(changes)})
    elif name == DEFAULT_NAME:
        output.line('Completed updating default config for brokers in the cluster.')
    else:
        output.line(f'Completed updating config for {entity_type.title} {name}.')


def _operations(changes: Iterable[tuple[str, str | None]]) -> Iterator[tuple[str, Any, str | None]]:
    from kbroker.client.admin import AlterOp
    for name, value in changes:
        yield name, AlterOp.DELETE if value is None else AlterOp.SET, value


if __name__ == '__main__':
    main(prog_name='kbroker-configs')
