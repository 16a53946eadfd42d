"""ACLs as the options of kafka-acls name them and as its output shows them."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from kbroker.security.acl_codes import (
    CLUSTER_NAME,
    WILDCARD,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

RESOURCE_OPTIONS = {'topic': ResourceType.TOPIC, 'group': ResourceType.GROUP,
                    'transactional_id': ResourceType.TRANSACTIONAL_ID,
                    'delegation_token': ResourceType.DELEGATION_TOKEN, 'user_principal': ResourceType.USER}
SUPPORTED = {
    ResourceType.TOPIC: {Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
                         Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS},
    ResourceType.GROUP: {Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS,
                         Operation.ALTER_CONFIGS},
    ResourceType.CLUSTER: {Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION,
                           Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE},
    ResourceType.TRANSACTIONAL_ID: {Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT},
    ResourceType.DELEGATION_TOKEN: {Operation.DESCRIBE},
    ResourceType.USER: {Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS},
}
"""Maps each resource type to the operations that apply to it. Brokers do not check this."""

PRODUCE = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
PRODUCE_IN_TRANSACTIONS = (Operation.WRITE, Operation.DESCRIBE)
CONSUME = (Operation.READ, Operation.DESCRIBE)
EVERYTHING = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


class Resource(NamedTuple):
    """The resources of one type whose names match a pattern."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType

    def __str__(self) -> str:
        return (f'ResourcePattern(resourceType={self.resource_type.name}, name={self.name}, '
                f'patternType={self.pattern_type.name})')

    @property
    def filter(self) -> AclFilter:
        """Return the filter that matches all ACLs of the resource."""
        return EVERYTHING._replace(resource_type=self.resource_type, resource_name=self.name,
                                   pattern_type=self.pattern_type)


class Rule(NamedTuple):
    """The parts of an ACL that do not describe its resource."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return (f'(principal={self.principal}, host={self.host}, operation={self.operation.name}, '
                f'permissionType={self.permission.name})')

    def of(self, resource: Resource) -> AclFilter:
        """Return an ACL: this rule for a resource. The same object is the filter that matches the ACL."""
        return AclFilter(resource.resource_type, resource.name, resource.pattern_type, self.principal, self.host,
                         self.operation, self.permission)


CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)

Options = Mapping[str, Any]
Rules = dict[Resource, list[Rule]]


def rules_of(acls: Iterable[AclFilter]) -> Rules:
    """Return {resource: rules}, both sorted. Protocol codes that this version does not know become UNKNOWN."""
    found: Rules = {}
    for acl in acls:
        assert acl.resource_name is not None and acl.principal is not None and acl.host is not None
        resource = Resource(known(ResourceType, acl.resource_type), acl.resource_name,
                            known(PatternType, acl.pattern_type))
        found.setdefault(resource, []).append(
            Rule(acl.principal, acl.host, known(Operation, acl.operation), known(Permission, acl.permission_type)))
    return {resource: sorted(found[resource]) for resource in sorted(found)}


def known(kinds: Any, code: int) -> Any:
    return kinds(code) if code in set(kinds) else kinds.UNKNOWN


def resources_of(options: Options) -> list[Resource]:
    """Return the resources that the options name."""
    pattern_type = PatternType[options['resource_pattern_type'].upper()]
    found = [Resource(resource_type, name.strip(), pattern_type)
             for option, resource_type in RESOURCE_OPTIONS.items() for name in options[option]]
    if pattern_type == PatternType.LITERAL and (options['cluster'] or options['idempotent']):
        found.append(CLUSTER)
    return list(dict.fromkeys(found))


def wanted_rules(options: Options) -> Rules:
    """Return the rules that --add or --remove concerns, by resource. A resource without rules means all of its ACLs.

    Raise click.UsageError if the resource or the operation is missing, or if the operation does not apply to the
    resource.
    """
    resources = resources_of(options)
    if not resources:
        raise click.UsageError('name a resource: --topic, --group, --transactional-id, --cluster, --delegation-token '
                               'or --user-principal')
    rules: Rules = {}
    if not options['producer'] and not options['consumer']:
        operations = [parse_operation(text) for text in options['operation'] or ('All',)]
        rules = {resource: rules_for(options, operations) for resource in resources}
    if options['producer']:
        wanted = {ResourceType.TOPIC: PRODUCE, ResourceType.TRANSACTIONAL_ID: PRODUCE_IN_TRANSACTIONS}
        rules |= {resource: rules_for(options, wanted[resource.resource_type]) for resource in resources
                  if resource.resource_type in wanted}
        if options['idempotent']:
            rules[CLUSTER] = rules_for(options, (Operation.IDEMPOTENT_WRITE,))
    if options['consumer']:
        needed = {ResourceType.TOPIC: CONSUME, ResourceType.GROUP: (Operation.READ,)}
        for resource in resources:
            if resource.resource_type in needed:
                more = rules_for(options, needed[resource.resource_type])
                rules[resource] = list(dict.fromkeys([*rules.get(resource, ()), *more]))
    for resource, some in rules.items():
        check_operations(resource, some)
    return {resource: sorted(rules[resource]) for resource in sorted(rules)}


def check_operations(resource: Resource, rules: list[Rule]) -> None:
    """Raise click.UsageError if a rule has an operation that does not apply to the resource."""
    supported = SUPPORTED[resource.resource_type] | {Operation.ALL}
    for rule in rules:
        if rule.operation not in supported:
            raise click.UsageError(f'{resource.resource_type.name} supports the operations '
                                   f'{", ".join(sorted(each.name for each in supported))}; found {rule.operation.name}')


def rules_for(options: Options, operations: Iterable[Operation]) -> list[Rule]:
    """Return the rules that the options describe. Each rule allows or denies one operation to one principal from one
    host."""
    operations = list(operations)
    return list(dict.fromkeys(
        Rule(principal, host.strip(), operation, permission)
        for permission in (Permission.ALLOW, Permission.DENY)
        for principal in principals_of(options, f'{permission.name.lower()}_principal')
        for host in options[f'{permission.name.lower()}_host'] or (WILDCARD,)
        for operation in operations))


def principals_of(options: Options, option: str) -> list[str]:
    """Return the principals that an option names. Raise click.BadParameter if a text is not a principal."""
    principals = [text.strip() for text in options[option]]
    for principal in principals:
        if not principal.partition(':')[1]:
            raise click.BadParameter(f'found {principal!r}, expected TYPE:NAME, as in User:alice',
                                     param_hint='--' + option.replace('_', '-'))
    return principals


def parse_operation(text: str) -> Operation:
    """Return the operation with a name such as `DescribeConfigs` or `DESCRIBE_CONFIGS`. Raise click.BadParameter for an
    unknown name."""
    names = {operation.name.replace('_', ''): operation for operation in Operation if operation >= Operation.ALL}
    found = names.get(text.strip().upper().replace('_', ''))
    if found is None:
        raise click.BadParameter(f'found {text!r}, expected {", ".join(map(operation_name, names.values()))}',
                                 param_hint='--operation')
    return found


def operation_name(operation: Operation) -> str:
    return operation.name.title().replace('_', '')
