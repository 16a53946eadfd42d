"""TLS on the client's side of a connection, configured by the PEM texts of the settings."""
from __future__ import annotations

import socket
import ssl

from kbroker.client.config import TlsConfig
from kbroker.client.errors import AnswerTimeout, ClientError
from kbroker.security.tls import load_key, refuse_revoked, set_versions, trust
from kbroker.security.tls_failures import why_the_broker_is_refused, why_the_handshake_failed


def secured(plain: socket.socket, host: str, address: str, config: TlsConfig) -> ssl.SSLSocket:
    """Do the TLS handshake, and return the TLS socket.

    Raise ClientError if the handshake fails, ConfigError if OpenSSL rejects a PEM text.
    """
    context = make_context(config)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ClientError(f'{address}: the certificate is not accepted: '
                          f'{why_the_broker_is_refused(error, host)}', True) from None
    except TimeoutError:
        raise AnswerTimeout(f'{address} did not answer the TLS handshake in time: it may not speak TLS; check the port '
                            'and security.protocol') from None
    except OSError as error:
        raise ClientError(f'{address}: the TLS handshake failed: '
                          f'{why_the_handshake_failed(error, config.private_key is not None)}', True) from None


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the SSLContext for the settings.

    Raise ConfigError for a certificate, a key or a revocation list that OpenSSL rejects.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.checks_host_name
    set_versions(context, config.enabled_protocols)
    if config.trusted_certificates is None:
        context.load_default_certs()
    else:
        trust(context, config.trusted_certificates)
    if config.revocation_lists is not None:
        refuse_revoked(context, config.revocation_lists)
    if config.private_key is not None:
        load_key(context, config.private_key, config.certificate_chain or '', config.key_password)
    return context
