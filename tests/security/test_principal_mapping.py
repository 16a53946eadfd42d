"""Principals of TLS clients: the text of a certificate's subject, and the rules that make a principal from this
text."""
import contextlib
import ssl
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.certificate_names import APP, MAPPINGS, NAMES, REFUSED, REFUSED_HERE, element

from kbroker.security.der import CertificateError
from kbroker.security.distinguished_names import name_text, subject_text
from kbroker.security.principal import Principal, parse_principals
from kbroker.security.principal_mapping import (
    LONGEST_SUBJECT,
    MappingError,
    mapped_name,
    parse_mapping_rules,
    principal_of_certificate,
)


def certificate_of(subject):
    """Return a certificate whose subject is `subject`, a Name in DER, and whose other fields are empty."""
    empty = element(0x30, b'')
    fields = [element(0xA0, element(2, b'\2')), element(2, b'\1'), empty, empty, empty, subject, empty]
    return element(0x30, element(0x30, b''.join(fields)) + empty + element(3, b'\0'))


@pytest.mark.parametrize('text', NAMES, ids=ascii)
def test_a_subject_has_the_text_that_java_prints(text):
    assert subject_text(certificate_of(NAMES[text])) == text


@pytest.mark.parametrize(('rules', 'subject', 'name'), MAPPINGS)
def test_rules_map_as_kafkas_do(rules, subject, name):
    if name is None:
        with pytest.raises(MappingError, match='no rule'):
            mapped_name(subject, parse_mapping_rules(rules))
    else:
        assert mapped_name(subject, parse_mapping_rules(rules)) == name


@pytest.mark.parametrize('rules', REFUSED + REFUSED_HERE)
def test_rules_that_do_not_parse_are_refused(rules):
    with pytest.raises(MappingError):
        parse_mapping_rules(rules)


def test_the_principal_of_a_certificate_is_its_mapped_subject():
    rules = parse_mapping_rules('RULE:^CN=([^,]+),.*$/$1/L,DEFAULT')
    assert principal_of_certificate(certificate_of(NAMES[APP]), rules) == Principal('User', 'app-1')


def test_a_long_subject_is_not_matched():
    with pytest.raises(MappingError, match=f'at most {LONGEST_SUBJECT}'):
        mapped_name('x' * (LONGEST_SUBJECT + 1), parse_mapping_rules('DEFAULT'))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_subject_or_an_error(data):
    for read in (subject_text, name_text):
        try:
            read(data)
        except CertificateError as error:
            assert str(error).startswith('certificate: ')


@pytest.mark.parametrize('size', [129, 60_000])
def test_an_attribute_with_a_number_without_end_is_refused(size):
    """An earlier version printed such a number: it raised another error, and 100 KB took 0.6 s."""
    def element(tag, content):
        return bytes((tag, 0x83)) + len(content).to_bytes(3, 'big') + content

    identifier = element(6, b'\x81' * (size - 1) + b'\x01')
    name = element(0x31, element(0x30, identifier + b'\x0c\x00'))
    with pytest.raises(CertificateError, match=f'at most 128 bytes expected, found {size}'):
        name_text(name)


@given(st.sampled_from(sorted(NAMES)), st.data())
def test_a_damaged_certificate_is_a_subject_or_an_error(text, data):
    certificate = bytearray(certificate_of(NAMES[text]))
    certificate[data.draw(st.integers(0, len(certificate) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CertificateError):
        subject_text(bytes(certificate))


@pytest.mark.parametrize(('subject', 'text'), [
    ('/C=DE/O=Ex, Inc/OU=a+CN=multi/CN=Ä ü', 'CN=Ä ü,OU=a+CN=multi,O=Ex\\, Inc,C=DE'),
    ('/DC=org/DC=ex/UID=u1/emailAddress=a@b.c', '1.2.840.113549.1.9.1=#16056140622e63,UID=u1,DC=ex,DC=org'),
    ('/CN=app', 'CN=app')])
def test_certificates_of_openssl_are_read(tmp_path, subject, text):
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
                    '-utf8', '-multivalue-rdn', '-subj', subject, '-keyout', 'key', '-out', 'crt'],
                   cwd=tmp_path, check=True, capture_output=True)
    assert subject_text(ssl.PEM_cert_to_DER_cert((tmp_path / 'crt').read_text())) == text


def test_super_users_are_separated_by_semicolons():
    assert parse_principals('User:CN=a,O=b; User:admin ;') == [
        Principal('User', 'CN=a,O=b'), Principal('User', 'admin')]
    assert parse_principals('') == []
    with pytest.raises(ValueError, match='expected TYPE:NAME'):
        parse_principals('User:a;b')
