"""A slow access check, written from Kafka's rules for ACLs. Each call goes through all ACLs."""
import ipaddress

LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ALL, READ, WRITE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 2, 3, 4, 6, 7, 8, 10, 11


def address(text):
    """Return a host as an IP address object, so that different texts of the same address compare as equal. Return
    `text` itself if it is not an IP address."""
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return text
    return getattr(parsed, 'ipv4_mapped', None) or parsed


def contains(text, host):
    """Return whether the host of an ACL is a range of addresses that contains a client's address."""
    if '/' not in text:
        return False
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    client = address(host.partition('%')[0])
    return not isinstance(client, str) and client in network


def is_relevant(entry, resource_type, name):
    if entry.resource_type != resource_type:
        return False
    if entry.pattern_type == PREFIXED:
        return name.startswith(entry.resource_name)
    return entry.pattern_type == LITERAL and entry.resource_name in (name, '*')


def concerns(entry, principal, host):
    return entry.principal in (principal, 'User:*') and (
        entry.host == '*' or address(entry.host) == address(host) or contains(entry.host, host))


def fits(entry, operation):
    if entry.operation in (ALL, operation):
        return True
    if entry.permission_type != ALLOW:
        return False
    if operation == DESCRIBE:
        return entry.operation in (READ, WRITE, DELETE, ALTER)
    return operation == DESCRIBE_CONFIGS and entry.operation == ALTER_CONFIGS


def is_allowed(entries, super_users, everyone, question):
    """Return whether the ACLs allow an operation. `question` is (principal, host, operation, resource type, resource
    name)."""
    principal, host, operation, resource_type, name = question
    if principal in super_users:
        return True
    relevant = [entry for entry in entries if is_relevant(entry, resource_type, name)]
    permissions = {entry.permission_type for entry in relevant
                   if concerns(entry, principal, host) and fits(entry, operation)}
    if DENY in permissions:
        return False
    return ALLOW in permissions or (not relevant and everyone)


def is_allowed_by_type(entries, super_users, everyone, question):
    """Return whether the ACLs allow an operation on at least one resource of a type. `question` is (principal, host,
    operation, resource type)."""
    principal, host, operation, resource_type = question
    if is_allowed(entries, super_users, everyone, (principal, host, operation, resource_type, 'hardcode')):
        return True
    own = [entry for entry in entries if entry.resource_type == resource_type and concerns(entry, principal, host)
           and entry.operation in (ALL, operation)]
    denied = {(entry.pattern_type, entry.resource_name) for entry in own if entry.permission_type == DENY}
    allowed = {(entry.pattern_type, entry.resource_name) for entry in own if entry.permission_type == ALLOW}
    if (LITERAL, '*') in denied:
        return False
    if (LITERAL, '*') in allowed:
        return True
    denied_prefixes = [name for pattern, name in denied if pattern == PREFIXED]
    return any(not any(name.startswith(prefix) for prefix in denied_prefixes)
               and not (pattern == LITERAL and (LITERAL, name) in denied)
               for pattern, name in allowed)
