"""The proxy replaces the addresses of brokers in every response that has some, in all versions."""
import pytest

from kbroker.protocol import schema
from kbroker.protocol.codec import decode
from kbroker_tools.proxy.addresses import (
    ADDRESSES_OF_APPLICATIONS,
    SIZE_BYTES,
    framed,
    header_bytes_of,
    response_class,
    rewritten,
)

OF_APPLICATIONS = {'StreamsGroupHeartbeatResponse.partitions_by_user_endpoint.user_endpoint',
                   'StreamsGroupDescribeResponse.groups.members.user_endpoint'}
OF_CLIENTS = {'DescribeAclsResponse.resources.acls.host', 'DeleteAclsResponse.filter_results.matching_acls.host'}


def route(host, port):
    return f'proxy-of-{host}', port + 1


def fields_like_addresses(struct, path):
    """Yield the path of each field, at any depth, whose name is that of an address."""
    for field in struct.fields:
        here = f'{path}.{field.name}'
        if field.name in ('host', 'port', 'node_endpoints', 'endpoints', 'endpoint', 'listeners'):
            yield here
        if field.struct is not None:
            yield from fields_like_addresses(field.struct, here)


def responses():
    return [declaration for name, declaration in schema.declarations().items()
            if declaration.kind == 'api' and name.endswith('Response')]


def filled(cls, struct, version):
    """Return a struct in which each array has an element, and each address is `broker` and 9092."""
    values = {}
    for field in struct.fields:
        if version not in field.versions:
            continue
        if field.struct is not None:
            inner = filled(cls, field.struct, version)
            values[field.name] = [inner] if field.is_array else inner
        elif field.name in ('host', 'port'):
            values[field.name] = 'broker' if field.name == 'host' else 9092
        elif field.type == 'records':
            values[field.name] = b'records'
    return (cls if struct is cls.schema.struct else getattr(cls, struct.name))(**values)


def addresses(message, struct, version, path):
    """Yield (path, value) of each host and port in a message."""
    for field in struct.fields:
        value = getattr(message, field.name)
        here = f'{path}.{field.name}'
        if field.struct is not None and version in field.versions:
            for each in value if field.is_array else [value]:
                yield from addresses(each, field.struct, version, here)
        elif field.name in ('host', 'port') and version in field.versions:
            yield here, value


@pytest.mark.parametrize('declaration', [pytest.param(each, id=each.name) for each in responses()])
def test_each_address_of_a_broker_is_replaced_in_each_version(declaration):
    cls = response_class(declaration.key)
    for version in range(cls.versions[0], cls.versions[1] + 1):
        header = bytes(header_bytes_of(declaration.key, version))
        before = framed(filled(cls, cls.schema.struct, version), version, header)
        after = rewritten(before, declaration.key, version, route)
        found = list(addresses(decode(cls, after, version, SIZE_BYTES + len(header)), cls.schema.struct, version,
                               declaration.name))
        for path, value in found:
            is_kept = path in OF_CLIENTS or path.rpartition('.')[0] in OF_APPLICATIONS
            assert value in (('broker', 9092) if is_kept else ('proxy-of-broker', 9093)), path
        has_own = any(path not in OF_CLIENTS and path.rpartition('.')[0] not in OF_APPLICATIONS for path, _ in found)
        assert (after is not before) == has_own


def test_no_response_has_an_address_under_another_name():
    """A new message with an address appears here. It has to be a `host` and a `port`, or be added to the walk."""
    found = {path for each in responses() for path in fields_like_addresses(schema.load(each.name).struct, each.name)}
    assert found - OF_CLIENTS == {
        f'{path}.{name}' for path in (
            'MetadataResponse.brokers', 'DescribeClusterResponse.brokers', 'FindCoordinatorResponse',
            'FindCoordinatorResponse.coordinators', 'ProduceResponse.node_endpoints', 'FetchResponse.node_endpoints',
            'ShareFetchResponse.node_endpoints', 'ShareAcknowledgeResponse.node_endpoints',
            'DescribeQuorumResponse.nodes.listeners', *OF_APPLICATIONS) for name in ('host', 'port')
    } | {f'{api}Response.node_endpoints' for api in ('Produce', 'Fetch', 'ShareFetch', 'ShareAcknowledge')} | {
        'DescribeQuorumResponse.nodes.listeners'}
    assert {path.rpartition('.')[2] for path in OF_APPLICATIONS} == set(ADDRESSES_OF_APPLICATIONS)


def test_a_response_without_endpoints_is_not_encoded_again():
    fetched = response_class(1)(responses=[])
    before = framed(fetched, 17, bytes(5))
    assert rewritten(before, 1, 17, route) is before
    assert rewritten(b'anything', 1, 12, route) == b'anything'


def test_responses_of_unknown_apis_and_versions_pass():
    assert rewritten(b'anything', 999, 0, route) == b'anything'
    assert rewritten(b'anything', 3, 99, route) == b'anything'
