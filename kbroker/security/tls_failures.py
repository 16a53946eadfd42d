"""Why a TLS handshake failed, in words. OpenSSL names the function or the alert that failed, not what to mend.

Both sides share a table of the alerts with which a peer says why it ended the handshake.
"""
from __future__ import annotations

import ssl

EXPIRED, NOT_YET_VALID, REVOKED, WRONG_NAME, WRONG_ADDRESS = 10, 9, 23, 62, 64
"""Some of OpenSSL's codes for certificates that are not accepted (X509_V_ERR_...)."""
UNTRUSTED = (2, 18, 19, 20, 21)
"""The codes for certificates of an authority that the truststore does not have."""
WITHOUT_CRL, OLD_CRL = 3, 12
NOT_TLS = ('WRONG_VERSION_NUMBER', 'HTTP_REQUEST', 'HTTPS_PROXY_REQUEST')
NO_COMMON_VERSION = ('UNSUPPORTED_PROTOCOL', 'VERSION_TOO_LOW', 'WRONG_SSL_VERSION', 'NO_PROTOCOLS_AVAILABLE',
                     'TLSV1_ALERT_PROTOCOL_VERSION')
REFUSED_CERTIFICATES = {
    'SSLV3_ALERT_CERTIFICATE_EXPIRED': 'it has expired',
    'SSLV3_ALERT_CERTIFICATE_REVOKED': 'it is revoked',
    'TLSV1_ALERT_UNKNOWN_CA': 'it does not trust the authority that signed it',
    'SSLV3_ALERT_BAD_CERTIFICATE': 'it is for another host name, or not valid yet',
    'SSLV3_ALERT_CERTIFICATE_UNKNOWN': 'it does not trust it, or it has expired or is for another host name',
    'SSLV3_ALERT_UNSUPPORTED_CERTIFICATE': 'its type or its use is not supported'}
"""Maps the alerts about a certificate to what the peer says about it. Java sends the one for a bad certificate if there
is none.
"""
ASKED_FOR_CERTIFICATE = ('TLSV13_ALERT_CERTIFICATE_REQUIRED', 'SSLV3_ALERT_HANDSHAKE_FAILURE')


def raw_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's words for an error."""
    return (error.reason or str(error)).replace('_', ' ').lower()


def why_the_client_failed(error: ssl.SSLError) -> str:
    """Return why the handshake with a client failed, and OpenSSL's words for it, for the log of the broker."""
    return f'the TLS handshake failed: {_client_fault(error)} (TLS: {raw_reason(error)})'


def _client_fault(error: ssl.SSLError) -> str:
    reason = error.reason or ''
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_fault(error)
    if reason in REFUSED_CERTIFICATES:
        return f'the client refuses the certificate of the broker: {REFUSED_CERTIFICATES[reason]}'
    if reason == 'PEER_DID_NOT_RETURN_A_CERTIFICATE':
        return 'the client shows no certificate, and ssl.client.auth is required'
    if reason in NO_COMMON_VERSION:
        return 'the client offers no version of TLS that ssl.enabled.protocols has'
    if reason == 'NO_SHARED_CIPHER':
        return 'the client offers no cipher suite that the broker has for its key'
    if reason == 'HTTP_REQUEST':
        return 'the client speaks HTTP without TLS, and this is a listener for Kafka clients with TLS'
    if reason in NOT_TLS:
        return 'the client does not speak TLS: set its security.protocol to SSL or SASL_SSL, or let it use another ' \
               'listener'
    return 'the client does not follow the protocol, or ended the handshake'


def _certificate_fault(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == EXPIRED:
        return "the client's certificate has expired"
    if code == NOT_YET_VALID:
        return "the client's certificate is not valid yet, or the clock of this machine is wrong"
    if code in UNTRUSTED:
        return "no authority of ssl.truststore.location signed the client's certificate"
    if code == REVOKED:
        return "the client's certificate is revoked"
    if code in (WITHOUT_CRL, OLD_CRL):
        return 'ssl.crl.location has no valid revocation list of the authority that signed the client\'s certificate'
    return f"the client's certificate is not accepted: {error.verify_message}"


def why_the_broker_is_refused(error: ssl.SSLCertVerificationError, host: str) -> str:
    """Return why the client does not accept the certificate of a broker, and what to mend."""
    code = error.verify_code
    if code == EXPIRED:
        return 'it has expired; the operator of the broker has to replace it, unless the clock of this machine is wrong'
    if code == NOT_YET_VALID:
        return 'it is not valid yet; check the clock of this machine'
    if code in UNTRUSTED:
        return 'no authority in ssl.truststore.location signed it; without that setting, the authorities of this ' \
               f'system count ({error.verify_message})'
    if code in (WRONG_NAME, WRONG_ADDRESS):
        return f'it is not for the name {host}; connect by a name of the certificate (bootstrap.servers, and ' \
               'advertised.listeners of the broker). An empty ssl.endpoint.identification.algorithm accepts any name'
    if code == REVOKED:
        return 'it is revoked'
    if code in (WITHOUT_CRL, OLD_CRL):
        return 'ssl.crl.location has no valid revocation list of the authority that signed it'
    return f'{error.verify_message.rstrip(".")}; check ssl.truststore.location'


def why_the_broker_refuses(reason: str | None, has_certificate: bool) -> str | None:
    """Return why a broker ended the handshake, given OpenSSL's name of its alert. Return None for any other reason.

    `has_certificate` is true if the client has a certificate to show.
    """
    if reason in NO_COMMON_VERSION:
        return 'the broker has no version of TLS that ssl.enabled.protocols of this client has'
    if not has_certificate and (reason in REFUSED_CERTIFICATES or reason in ASKED_FOR_CERTIFICATE):
        return 'the broker asks for a client certificate, and ssl.keystore.location is not set'
    if reason in REFUSED_CERTIFICATES:
        return f'the broker refuses the certificate of this client (ssl.keystore.location): ' \
               f'{REFUSED_CERTIFICATES[reason]}'
    if reason == 'SSLV3_ALERT_HANDSHAKE_FAILURE':
        return 'the broker has no cipher suite of this client, or refuses its certificate (ssl.keystore.location)'
    return None


def why_the_handshake_failed(error: OSError, has_certificate: bool) -> str:
    """Return why a handshake with a broker failed, apart from the broker's certificate."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return 'the peer closed the connection: the port may not speak TLS; check the port and security.protocol'
    if error.reason in NOT_TLS or error.reason == 'RECORD_LAYER_FAILURE':
        return 'the peer answers without TLS: the port may not speak TLS; check the port and security.protocol'
    why = why_the_broker_refuses(error.reason, has_certificate) or 'the broker and this client do not agree'
    return f'{why} (TLS: {raw_reason(error)})'
