"""kbroker-acls. Its options and its output are those of kafka-acls."""
from __future__ import annotations

import sys
from typing import Any

import click

from kbroker_tools.acls.places import ClusterAcls, DirectoryAcls, Place
from kbroker_tools.acls.rules import (
    EVERYTHING,
    Resource,
    Rule,
    Rules,
    principals_of,
    resources_of,
    rules_of,
    wanted_rules,
)
from kbroker_tools.base import actions
from kbroker_tools.base.command import SETTINGS, Command, output_options, version_option
from kbroker_tools.base.render import Output, printable
from kbroker_tools.cluster.opening import cluster_options, open_view


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--add', is_flag=True, help='Create ACLs.')
@click.option('--remove', is_flag=True,
              help='Delete ACLs, after a confirmation. Without a principal: all ACLs of the resource.')
@click.option('--list', 'list_', is_flag=True, help='Print ACLs: those of the named resources, or all.')
@click.option('--topic', multiple=True, metavar='NAME', help='A topic; * for all topics.')
@click.option('--group', multiple=True, metavar='NAME', help='A group; * for all groups.')
@click.option('--transactional-id', multiple=True, metavar='ID', help='A transactional id; * for all.')
@click.option('--cluster', is_flag=True, help='The cluster.')
@click.option('--delegation-token', multiple=True, metavar='ID', help='A delegation token. kbroker has none.')
@click.option('--user-principal', multiple=True, metavar='TYPE:NAME', help='A user, as the owner of tokens.')
@click.option('--resource-pattern-type', type=click.Choice(['any', 'match', 'literal', 'prefixed'], False),
              default='literal', show_default=True,
              help='Names are literal or prefixed, which covers all names that begin so. For --list and --remove also '
                   'any (both patterns of this name) and match (all ACLs that concern the resource).')
@click.option('--operation', multiple=True, metavar='NAME',
              help='The operation: Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, '
                   'AlterConfigs, IdempotentWrite, CreateTokens, DescribeTokens, TwoPhaseCommit, or All, the default.')
@click.option('--allow-principal', multiple=True, metavar='TYPE:NAME', help='A user to allow; User:* for all.')
@click.option('--deny-principal', multiple=True, metavar='TYPE:NAME', help='A user to deny. A denial takes precedence.')
@click.option('--allow-host', multiple=True, metavar='ADDRESS',
              help='Allow from this address only, or from a range of addresses such as 10.0.0.0/8. Ranges need '
                   'metadata.version 32.')
@click.option('--deny-host', multiple=True, metavar='ADDRESS', help='Deny from this address or range only.')
@click.option('--principal', multiple=True, metavar='TYPE:NAME', help='With --list: print the ACLs of this user.')
@click.option('--producer', is_flag=True,
              help='Write, Describe and Create on the topics; Write and Describe on the transactional ids.')
@click.option('--consumer', is_flag=True, help='Read and Describe on the topics, Read on the groups.')
@click.option('--idempotent', is_flag=True, help='With --producer: IdempotentWrite on the cluster.')
@click.option('--force', is_flag=True, help='Delete without a confirmation.')
@cluster_options
@output_options
@version_option
def main(as_json: bool, **options: Any) -> None:
    """Print and change access control lists (ACLs).

    The options and the output are those of kafka-acls; ACLs are sorted. The command can also list, add and remove ACLs
    in the log directory of a stopped broker.
    """
    options['list'] = options.pop('list_')
    action = actions.chosen_action(options, ('add', 'remove', 'list'))
    check_options(action, options)
    output = Output(as_json)
    if action == 'list':
        resources, principals = resources_of(options), principals_of(options, 'principal')
        list_acls(open_place(options), output, resources, principals)
        return
    rules = wanted_rules(options)
    if action == 'add':
        if not all(rules.values()):
            raise click.UsageError('--add needs --allow-principal or --deny-principal')
        add(open_place(options), output, rules)
    else:
        remove(open_place(options), output, rules, options['force'])


def check_options(action: str, options: dict[str, Any]) -> None:
    """Raise click.UsageError if options contradict each other or if a required option is missing."""
    changing = ('add', 'remove')
    actions.check_companions(action, options, {
        'principal': ('list',), 'force': ('add', 'remove'), 'idempotent': changing,
        **dict.fromkeys(('producer', 'consumer', 'operation', 'allow_principal', 'deny_principal', 'allow_host',
                         'deny_host'), changing)})
    if action == 'add' and options['resource_pattern_type'] not in ('literal', 'prefixed'):
        raise click.UsageError('--add needs the pattern type literal or prefixed')
    for shortcut in ('producer', 'consumer'):
        for name in ('operation', 'deny_principal', 'deny_host'):
            actions.check_at_most_one(options, (shortcut, name))
    if options['producer'] and not options['topic']:
        raise click.UsageError('--producer needs --topic')
    if options['idempotent'] and not options['producer']:
        raise click.UsageError('--idempotent goes with --producer')
    if options['consumer']:
        actions.require(options, 'topic', 'consumer')
        actions.require(options, 'group', 'consumer')
        if not options['producer'] and (options['cluster'] or options['transactional_id']):
            raise click.UsageError('--consumer needs neither --cluster nor --transactional-id')


def open_place(options: dict[str, Any]) -> Place:
    view: Any = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    return ClusterAcls(view.admin) if view.is_live else DirectoryAcls(view)


def list_acls(place: Place, output: Output, resources: list[Resource], principals: list[str]) -> None:
    filters = [resource.filter for resource in resources] or [EVERYTHING]
    found = dict.fromkeys(acl for wanted in filters for acl in place.describe(wanted))
    if not principals:
        show(output, rules_of(found))
    for principal in principals:
        if not output.as_json:
            output.line(f'ACLs for principal `{principal}`')
        show(output, rules_of(acl for acl in found if acl.principal == principal))


def show(output: Output, rules: Rules) -> None:
    for resource, some in rules.items():
        show_resource(output, f'Current ACLs for resource `{resource}`:\n', resource, some)


def show_resource(output: Output, title: str, resource: Resource, rules: list[Rule]) -> None:
    """Print a resource and its rules, with the same blanks as Kafka's tool. With JSON output, print an object for each
    rule."""
    if output.as_json:
        for rule in rules:
            output.row({'resource_type': resource.resource_type.name, 'resource_name': resource.name,
                        'pattern_type': resource.pattern_type.name, 'principal': rule.principal, 'host': rule.host,
                        'operation': rule.operation.name, 'permission_type': rule.permission.name})
        return
    for line in (title + '\n'.join(f'\t{rule}' for rule in rules) + '\n').split('\n'):
        output.line(line)


def add(place: Place, output: Output, rules: Rules) -> None:
    """Create the ACLs that do not exist yet. With JSON output, print an object for each ACL that was created."""
    new: Rules = {}
    for resource, some in rules.items():
        existing = set(place.describe(resource.filter))
        for rule in some:
            if rule.of(resource) not in existing:
                new.setdefault(resource, []).append(rule)
            elif not output.as_json:
                output.line(f'Acl (pattern={resource}, entry={rule}) already exists.')
    if new:
        place.create(rule.of(resource) for resource, some in new.items() for rule in some)
    for resource, some in new.items():
        show_resource(output, f'Adding ACLs for resource `{resource}`: \n ', resource, some)


def remove(place: Place, output: Output, rules: Rules, is_forced: bool) -> None:
    """Delete the ACLs, each after the user has confirmed it."""
    for resource, some in rules.items():
        if not is_forced and not is_agreed(question(resource, some)):
            continue
        place.delete([rule.of(resource) for rule in some] or [resource.filter])


def question(resource: Resource, rules: list[Rule]) -> str:
    if not rules:
        return f'Are you sure you want to delete all ACLs for resource filter `{resource}`? (y/n)'
    listed = '\n'.join(f'\t{rule}' for rule in rules)
    return f'Are you sure you want to remove ACLs: \n {listed} \n from resource filter `{resource}`? (y/n)'


def is_agreed(text: str) -> bool:
    for line in text.split('\n'):
        click.echo(printable(line, but='\t'))
    return sys.stdin.readline().strip().lower() == 'y'


if __name__ == '__main__':
    main(prog_name='kbroker-acls')
