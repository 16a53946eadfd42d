"""Functions that configure an SSLContext, for both sides of a TLS connection.

They raise ConfigError for input that OpenSSL rejects.
"""
from __future__ import annotations

import os
import ssl
import tempfile

from kbroker.settings.tls import bad_setting, take_inline_pem, take_pem_file, take_store, take_tls_versions

CLIENT_AUTH = {'none': ssl.CERT_NONE, 'requested': ssl.CERT_OPTIONAL, 'required': ssl.CERT_REQUIRED}
VERSIONS = {'TLSv1.2': ssl.TLSVersion.TLSv1_2, 'TLSv1.3': ssl.TLSVersion.TLSv1_3}


def set_versions(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    versions = [VERSIONS[name] for name in names]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def trust(context: ssl.SSLContext, certificates: str) -> None:
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as error:
        raise bad_setting('ssl.truststore', f'the certificates cannot be read ({error.reason})') from None


def refuse_revoked(context: ssl.SSLContext, lists: str) -> None:
    """Make the context refuse revoked certificates, and certificates whose authority has no valid list in `lists`.

    `lists` has certificate revocation lists (CRLs) in PEM.
    """
    if 'BEGIN X509 CRL' not in lists:
        raise bad_setting('ssl.crl.location', 'found no X509 CRL')
    path = _private_file(lists)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise bad_setting('ssl.crl.location', f'the lists cannot be read ({error.reason})') from None
    finally:
        os.unlink(path)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _private_file(text: str) -> str:
    """Write a temporary file that only this user can read. OpenSSL reads keys and CRLs only from files."""
    handle, path = tempfile.mkstemp(suffix='.pem')
    with os.fdopen(handle, 'w') as file:
        file.write(text)
    return path


def load_key(context: ssl.SSLContext, private_key: str, chain: str, password: str | None) -> None:
    """Load a private key and its certificate chain into a context. Raise ConfigError if OpenSSL rejects them."""
    path = _private_file(private_key if chain == private_key else f'{private_key}\n{chain}\n')
    try:
        # Without a password, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(path, password=password or '')
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, 'reason', None) or error
        raise bad_setting('ssl.keystore', f'key and certificate chain cannot be used ({reason}); is ssl.key.password '
                                          'right?') from None
    finally:
        os.unlink(path)


def server_context(settings: dict[str, str]) -> ssl.SSLContext:
    """Return the SSLContext of a listener. Remove the `ssl.` settings that it uses from the dict `settings`.

    Raise ConfigError if a setting is not valid, OSError if a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0         # tickets help clients that connect often; Kafka's keep connections
    set_versions(context, take_tls_versions(settings))
    key = take_store(settings, 'ssl.keystore', 'ssl.keystore.key')
    if key is None:
        raise bad_setting('ssl.keystore.location',
                          'found none, expected the key and certificate chain of an SSL listener')
    chain = take_inline_pem(settings, 'ssl.keystore.certificate.chain')
    load_key(context, key, key if chain is None else chain, settings.pop('ssl.key.password', None))
    trusted = take_store(settings, 'ssl.truststore', 'ssl.truststore.certificates')
    auth = settings.pop('ssl.client.auth', 'none')
    if auth != 'none':
        if trusted is None:
            raise bad_setting('ssl.truststore.location',
                              f'found none, expected certificates: ssl.client.auth is {auth}')
        context.verify_mode = CLIENT_AUTH[auth]
    if trusted is not None:
        trust(context, trusted)
    revoked = take_pem_file(settings, 'ssl.crl.location')
    if revoked is not None:
        refuse_revoked(context, revoked)
    return context
