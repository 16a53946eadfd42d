"""The times until which certificates are valid: reading them, and the lines about those that expired or soon will."""
import logging
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from support.clients.certificates import certificate_between, make_revocation_list

from kbroker.security.certificates import MOST_LINES, certificates_of, next_change_s, problems_of
from kbroker.security.der import CertificateError, read_certificate, read_revocation_list

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
NOW_S = int(NOW.timestamp())


def between(days_before, days_after, name='one'):
    return certificate_between(name, NOW - timedelta(days=days_before), NOW + timedelta(days=days_after))


@pytest.fixture
def problems(tmp_path):
    def problems(keystore='', truststore=''):
        settings = {}
        for name, text in (('keystore', keystore), ('truststore', truststore)):
            if text:
                (tmp_path / f'{name}.pem').write_text(text)
                settings[f'ssl.{name}.location'] = str(tmp_path / f'{name}.pem')
        certificates, unreadable = certificates_of(settings)
        assert unreadable == []
        return [(problem.level, problem.text.replace(f'{tmp_path}/', '')) for problem in
                problems_of(certificates, NOW_S)]

    return problems


@pytest.mark.parametrize(('before', 'after', 'expected'), [
    (10, 31, []),
    (10, 12.5, [(logging.WARNING, 'ssl.keystore.location: keystore.pem: the certificate CN=one expires at 2026-12-11 '
                 '00:00:00 UTC, in 12 days: replace it; a running broker reads the new one without a restart')]),
    (10, -2, [(logging.ERROR, 'ssl.keystore.location: keystore.pem: the certificate CN=one expired at 2026-11-26 '
               '12:00:00 UTC, and the clock of this machine says 2026-11-28 12:00:00 UTC: replace it; a running broker '
               'reads the new one without a restart')]),
    (-1, 400, [(logging.ERROR, 'ssl.keystore.location: keystore.pem: the certificate CN=one is not valid before '
                '2026-11-29 12:00:00 UTC, and the clock of this machine says 2026-11-28 12:00:00 UTC: check the clock, '
                'or take a certificate that is valid now')])])
def test_a_keystore_has_a_line_for_each_certificate_that_is_not_valid_or_soon_is_not(problems, before, after, expected):
    assert problems(between(before, after)) == expected


def test_each_certificate_of_a_chain_is_read(problems):
    found = problems(between(1, 90) + between(9, -1, 'intermediate'))
    assert [(level, 'CN=intermediate expired' in text) for level, text in found] == [(logging.ERROR, True)]


def test_an_expired_authority_is_an_error_only_if_the_truststore_has_no_valid_one(problems):
    old, new = between(9, -1, 'old'), between(9, 90, 'new')
    assert [level for level, _ in problems(truststore=old)] == [logging.ERROR]
    assert [level for level, _ in problems(truststore=old + new)] == [logging.WARNING]


def test_many_expired_certificates_are_a_bounded_number_of_lines(problems):
    found = problems(truststore=between(9, -1) * 50)
    assert len(found) == MOST_LINES + 1
    assert found[-1][1] == f'ssl.truststore.location: truststore.pem: {50 - MOST_LINES} more certificates are not ' \
                           'valid, or soon are not'


def test_a_subject_cannot_end_the_line(problems):
    assert '\\n' in problems(between(9, -1, 'a\nb'))[0][1]


def test_a_certificate_in_a_setting_is_named_by_the_setting():
    text = between(9, -1)
    certificates, _ = certificates_of({'ssl.keystore.key': text})
    assert problems_of(certificates, NOW_S)[0].text.startswith('ssl.keystore.key: the certificate CN=one expired')
    key, chain = text[:text.index('-----BEGIN CERTIFICATE')], text[text.index('-----BEGIN CERTIFICATE'):]
    certificates, _ = certificates_of({'ssl.keystore.key': key, 'ssl.keystore.certificate.chain': chain})
    assert [found.place for found in certificates] == ['ssl.keystore.certificate.chain']


@pytest.mark.skipif(shutil.which('openssl') is None, reason='openssl not found')
def test_an_expired_revocation_list_is_a_warning(certificates):
    _, lists = make_revocation_list(certificates, 'stranger')
    found, _ = certificates_of({'ssl.crl.location': str(lists)})
    assert [(certificate.kind, certificate.subject) for certificate in found] == [('crl', 'CN=authority')]
    assert problems_of(found, found[0].not_before_s) == []
    (problem,) = problems_of(found, found[0].not_after_s + 1)
    assert problem.level == logging.WARNING
    assert 'the revocation list of CN=authority expired at' in problem.text


def test_the_next_change_is_the_second_after_the_first_certificate_ends(problems, tmp_path):
    problems(between(9, -1) + between(9, 3) + between(9, 2))
    certificates, _ = certificates_of({'ssl.keystore.location': str(tmp_path / 'keystore.pem')})
    assert next_change_s(certificates, NOW_S) == 2 * 24 * 60 * 60 + 1
    assert next_change_s([], NOW_S) is None


@pytest.mark.parametrize(('year', 'expected'), [(1950, 1950), (2049, 2049), (2050, 2050), (9999, 9999)])
def test_both_kinds_of_time_are_read(year, expected, tmp_path):
    (tmp_path / 'one.pem').write_text(certificate_between('one', datetime(1950, 1, 1, tzinfo=UTC),
                                                          datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)))
    (found,), _ = certificates_of({'ssl.truststore.location': str(tmp_path / 'one.pem')})
    assert datetime.fromtimestamp(found.not_after_s, UTC) == datetime(expected, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_certificate_with_another_time_is_a_warning(tmp_path):
    text = '-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n'
    (tmp_path / 'one.pem').write_text(text)
    found, (problem,) = certificates_of({'ssl.truststore.location': str(tmp_path / 'one.pem')})
    assert found == []
    assert problem.level == logging.WARNING
    assert 'the time until which a certificate is valid is unknown: certificate: tag 0x30 expected' in problem.text


@pytest.mark.parametrize('read', [read_certificate, read_revocation_list])
def test_bytes_that_are_no_certificate_are_refused(read):
    for data in (b'', b'\x30', b'\x30\x84\xff\xff\xff\xff', b'\x30\x00', b'\x30\x02\x30\x00', bytes(20)):
        with pytest.raises(CertificateError):
            read(data)
