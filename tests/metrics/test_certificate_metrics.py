"""The metrics of TLS: one series for each certificate of a listener."""
from kbroker.metrics.certificates import EXPIRY, FAILED_HANDSHAKES, collect_certificates, collect_handshakes
from kbroker.security.certificates import Certificate


def certificate(subject, end_s, kind='keystore'):
    return Certificate(f'ssl.{kind}.location', f'/etc/{kind}.pem', kind, subject, 0, end_s)


def test_each_certificate_of_a_listener_is_a_series():
    samples = list(collect_certificates({
        'SSL': (certificate('CN=broker', 100), certificate('CN=authority', 200)), 'INSIDE': (certificate('CN=x', 5),)}))
    assert samples == [
        (EXPIRY, ('SSL', 'keystore', '/etc/keystore.pem', 'CN=broker'), 100),
        (EXPIRY, ('SSL', 'keystore', '/etc/keystore.pem', 'CN=authority'), 200),
        (EXPIRY, ('INSIDE', 'keystore', '/etc/keystore.pem', 'CN=x'), 5)]
    assert all(len(labels) == len(metric.labels) for metric, labels, _ in samples)


def test_an_authority_with_two_certificates_is_one_series_with_the_later_end():
    samples = collect_certificates({'SSL': (
        certificate('CN=a', 300, 'truststore'), certificate('CN=a', 100, 'truststore'))})
    assert [(labels[-1], value) for _, labels, value in samples] == [('CN=a', 300)]


def test_a_revocation_list_without_an_end_has_no_series():
    assert list(collect_certificates({'SSL': (certificate('CN=a', None, 'crl'),)})) == []


def test_failed_handshakes_are_counted():
    assert list(collect_handshakes(7)) == [(FAILED_HANDSHAKES, (), 7)]
