"""Ranges of addresses in the hosts of ACLs: the grammar of Apache Kafka 4.4, and the addresses that a range contains.

The tables were seen on Apache Kafka 4.4.0.
"""
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.hosts import host_key
from kbroker.security.networks import NetworkSet, find_network, parse_network

ACCEPTED = {
    '10.0.0.0/8': '10.0.0.0/8', '10.0.0.1/8': '10.0.0.0/8', '1.2.3.4/32': '1.2.3.4/32', '0.0.0.0/0': '0.0.0.0/0',
    '010.0.0.0/8': '10.0.0.0/8', '10.0.0.0/08': '10.0.0.0/8', '255.255.255.255/1': '128.0.0.0/1',
    '::/0': '::/0', 'fe80::/10': 'fe80::/10', '2001:DB8::/32': '2001:db8::/32', '[::1]/128': '::1/128',
    'fe80::1%eth0/64': 'fe80::/64', '::/064': '::/64', '::/+64': '::/64', 'ffff:ffff::/16': 'ffff::/16',
}
REFUSED = {
    '10.0.0.0/33': 'Value [33] not in range [0,32]', '256.0.0.0/8': 'Value [256] not in range [0,255]',
    **{text: f'Could not parse [{text}]' for text in (
        '10.0.0.0/', '/8', '10.0.0.0/8 ', ' 10.0.0.0/8', '10.0.0/8', '10.0.0.0/-1', '10.0.0.0/255.0.0.0', 'a/b',
        '10.0.0.0/008', '0010.0.0.0/8', '10.0.0.0/8/8', '10.0.0.0/8\n', '10.0.0.0', '/', '\u0661.0.0.0/8',
        '[10.0.0.0]/8', '::/129', '::/-1', '::', '::/', '::/ 64', '::/6_4', '::/a', '::/64/64', 'a/::')},
    '::ffff:10.0.0.0/104': 'Could not parse [::ffff:10.0.0.0]', ':::/64': 'Could not parse [:::]',
    '[::1/128': 'Could not parse [[::1]', 'fe80::1%/64': 'Could not parse [fe80::1%]', ':/0': 'Could not parse [:]',
}


@pytest.mark.parametrize('text', ACCEPTED)
def test_all_spellings_of_a_range_have_one_normal_form(text):
    assert str(parse_network(text)) == host_key(text) == ACCEPTED[text]


@pytest.mark.parametrize('text', REFUSED)
def test_a_text_that_is_no_range_is_refused_with_kafkas_reason(text):
    with pytest.raises(ValueError) as refused:
        parse_network(text)
    assert str(refused.value).startswith(REFUSED[text])
    assert find_network(text) is None
    assert host_key(text) == (text if '/' in text else str(ipaddress.ip_address(text)))


def test_a_long_text_is_no_range_and_its_error_is_short():
    with pytest.raises(ValueError) as refused:
        parse_network(':/' + '1' * 30_000)
    assert len(str(refused.value)) < 200


@given(st.one_of(st.text('019.:/[]%+-fe', max_size=24), st.text(max_size=140)))
def test_any_text_is_a_range_with_a_normal_form_or_refused(text):
    try:
        found = parse_network(text)
    except ValueError:
        assert find_network(text) is None
        return
    assert found == find_network(text) == parse_network(str(found))
    assert host_key(text) == host_key(str(found)) == str(found)


def set_of(*texts):
    found = NetworkSet()
    for text in texts:
        found.add(parse_network(text), host_key(text))
    return found


@pytest.mark.parametrize(('text', 'inside', 'outside'), [
    ('10.0.0.1/8', ['10.0.0.0', '10.9.9.9', '10.255.255.255'], ['9.255.255.255', '11.0.0.0', '::a00:1', '::1']),
    ('0.0.0.0/0', ['1.2.3.4'], ['::1', '::102:304', 'localhost', '']),
    ('::/0', ['::1', 'fe80::1%eth0'], ['10.0.0.1', '10.0.0.1%eth0', 'host/8']),
    ('fe80::%lo/64', ['fe80::1%eth0', 'fe80::1', 'fe80::'], ['fe80:0:0:1::']),
    ('1.2.3.4/32', ['1.2.3.4'], ['1.2.3.5']),
])
def test_a_range_contains_the_addresses_of_its_family_that_share_its_prefix(text, inside, outside):
    ranges = set_of(text)
    assert [host for host in inside + outside if list(ranges.containing(host))] == inside


def test_an_ipv4_client_is_not_in_a_range_of_ipv6_however_its_address_is_spelled():
    assert list(set_of('::/0', '10.0.0.0/8').containing(host_key('::ffff:10.0.0.1'))) == ['10.0.0.0/8']


ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).filter(
    lambda address: getattr(address, 'ipv4_mapped', None) is None)
NEAR = st.sampled_from(['10.0.0.0', '10.0.0.1', '10.128.0.0', '::', '::1', 'fe80::', 'fe80::1', '8000::']).map(
    ipaddress.ip_address)
RANGES = st.builds(lambda address, share: f'{address}/{address.max_prefixlen * share // 128}',
                   st.one_of(ADDRESSES, NEAR), st.integers(0, 128))


@given(st.lists(RANGES, max_size=20), st.integers(0, 20), st.lists(st.one_of(ADDRESSES, NEAR), min_size=1))
def test_the_ranges_that_contain_an_address_are_those_of_the_standard_library(texts, kept, addresses):
    ranges, left = set_of(*texts), texts[:kept]
    for text in texts[kept:]:
        ranges.discard(parse_network(text))
    networks = {ipaddress.ip_network(text, strict=False) for text in left}
    assert len(ranges) == len(networks)
    for address in addresses:
        found = list(ranges.containing(str(address)))
        assert sorted(found) == sorted(str(network) for network in networks if address in network)
    for text in left:
        ranges.discard(parse_network(text))
    assert not any(vars(ranges).values())
