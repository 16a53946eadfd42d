"""The TLS side of a connection, from the PEM texts of the settings."""
from __future__ import annotations

import os
import socket
import ssl
import tempfile

from kbroker.client.config import TlsConfig
from kbroker.client.errors import ClientError
from kbroker.errors import ConfigError

VERSIONS = {'TLSv1.2': ssl.TLSVersion.TLSv1_2, 'TLSv1.3': ssl.TLSVersion.TLSv1_3}


def secured(plain: socket.socket, host: str, address: str, config: TlsConfig) -> ssl.SSLSocket:
    """The socket after the handshake. ClientError when there is none to be had, ConfigError for unusable PEM."""
    context = make_context(config)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ClientError(f'{address}: the certificate is not accepted: {error.verify_message.rstrip(".")}; check '
                          'ssl.truststore.location and ssl.endpoint.identification.algorithm', True) from None
    except TimeoutError:
        raise ClientError(f'{address} did not answer the TLS handshake in time: it may not speak TLS; check the port '
                          'and security.protocol') from None
    except OSError as error:
        reason = getattr(error, 'reason', None) or error.strerror or 'the peer closed the connection'
        raise ClientError(f'{address}: the TLS handshake failed ({reason}): the port may not speak TLS, or asks for '
                          'a client certificate; check the port, security.protocol and ssl.keystore.*', True) from None


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Raises ConfigError for certificates or a key that OpenSSL cannot use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.checks_host_name
    versions = [VERSIONS[name] for name in config.enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    try:
        if config.trusted_certificates is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=config.trusted_certificates)
    except ssl.SSLError as error:
        raise ConfigError('ssl.truststore',
                          f'ssl.truststore: the certificates cannot be read ({error.reason})') from None
    if config.private_key is not None:
        _load_key(context, config, config.private_key)
    return context


def _load_key(context: ssl.SSLContext, config: TlsConfig, private_key: str) -> None:
    """OpenSSL takes key and chain from files only, so they stand in one that nobody else may read, for a moment."""
    chain = config.certificate_chain or ''
    text = private_key if chain == private_key else f'{private_key}\n{chain}\n'
    handle, path = tempfile.mkstemp(suffix='.pem')
    try:
        with os.fdopen(handle, 'w') as file:
            file.write(text)
        # Without a password of ours OpenSSL would ask for one on the terminal.
        context.load_cert_chain(path, password=config.key_password or '')
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, 'reason', None) or error
        raise ConfigError('ssl.keystore', f'ssl.keystore: key and certificate chain cannot be used ({reason}); is '
                                          'ssl.key.password right?') from None
    finally:
        os.unlink(path)
