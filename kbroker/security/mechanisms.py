"""Creates the SASL mechanisms of a listener from its settings."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kbroker.security.mechanism import Mechanism
from kbroker.security.oauthbearer import NAME as OAUTHBEARER
from kbroker.security.oauthbearer import UnsecuredOAuthBearer
from kbroker.security.plain import Plain
from kbroker.security.scram import Scram
from kbroker.security.scram_credential import MECHANISM_CODES
from kbroker.security.surroundings import Surroundings
from kbroker.settings.jaas import JaasError, LoginModule, parse_jaas
from kbroker.settings.tls import bad_setting

MECHANISMS = ('PLAIN', *MECHANISM_CODES, OAUTHBEARER)

JAAS = 'sasl.jaas.config'
LOGIN_MODULES = {
    'PLAIN': 'org.apache.kafka.common.security.plain.PlainLoginModule',
    **dict.fromkeys(MECHANISM_CODES, 'org.apache.kafka.common.security.scram.ScramLoginModule'),
    OAUTHBEARER: 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule',
}
VALIDATOR = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler'
HANDLER = 'sasl.server.callback.handler.class'
JWKS_URL = 'sasl.oauthbearer.jwks.endpoint.url'


class Settings(Protocol):
    """Maps the dotted name of each setting to its value for one mechanism of one listener. An unset setting is None."""

    def __getitem__(self, name: str) -> Any: ...

    def name_of(self, name: str) -> str:
        """Return the full name under which a setting is set, or under which it could be set, for error messages."""


def mechanism_for(name: str, settings: Settings, surroundings: Surroundings, *, is_guarded: bool) -> Mechanism:
    """Return the mechanism `name`, constructed with the settings of a listener.

    The caller calls `load()` once (it may wait for the network), `start()` on the loop, `begin()` for each login, and
    `close()` at the end. `is_guarded` is False for a listener that other machines can reach, unless the operator has
    allowed insecure listeners. For a listener that is not guarded, a mechanism that lets clients choose their name is
    refused. Raise ConfigError for a refused mechanism, and for settings that are missing or contradict each other.
    """
    if name not in MECHANISMS:
        raise bad_setting('sasl.enabled.mechanisms', f'found {name}, expected some of {", ".join(MECHANISMS)}')
    module = _login_module(name, settings)
    if name in MECHANISM_CODES:
        return Scram(name, surroundings.find_credential, surroundings.secret)
    if module is None:
        raise bad_setting(settings.name_of(JAAS), f'found none, expected {LOGIN_MODULES[name]} required ...;')
    if name == 'PLAIN':
        return Plain(module.options)
    if settings[HANDLER] is not None:
        return _signed(settings, module.options, surroundings)
    if not is_guarded:
        raise bad_setting(settings.name_of(HANDLER), 'found none, so clients can write their own tokens, and other '
                          f'machines reach the listener: expected {VALIDATOR}')
    return UnsecuredOAuthBearer(module.options, surroundings.clock)


def _login_module(mechanism: str, settings: Settings) -> LoginModule | None:
    text, name = settings[JAAS], settings.name_of(JAAS)
    if text is None:
        return None
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise bad_setting(name, str(error)) from None
    if module.name != LOGIN_MODULES[mechanism]:
        raise bad_setting(name, f'found another login module, expected {LOGIN_MODULES[mechanism]}')
    return module


def _unverified_claims(settings: Settings) -> list[str]:
    """Return a warning for each claim of a signed token that the broker will not verify, because the operator allows
    it. Raise ConfigError for a claim whose expected value is missing by mistake: Apache Kafka 4.4 does not start, too.
    """
    warnings = []
    for claim, effect in (('issuer', 'tokens of every issuer whose key is in the key set are accepted'),
                          ('audience', 'tokens for every audience, or for none, are accepted')):
        name, allowance = f'sasl.oauthbearer.expected.{claim}', f'sasl.oauthbearer.allow.unverified.{claim}'
        if settings[name]:
            continue
        if not settings[allowance]:
            raise bad_setting(settings.name_of(name), f'found none, expected the {claim} of the tokens; '
                              f'with {settings.name_of(allowance)}=true, {effect}')
        warnings.append(f'{settings.name_of(name)} is not set: {effect}')
    return warnings


def _signed(settings: Settings, options: Mapping[str, str], surroundings: Surroundings) -> Mechanism:
    try:
        from kbroker.security.key_source import KeySet, Place, RefreshSettings
        from kbroker.security.signed_tokens import SignedOAuthBearer, TokenSettings
    except ImportError:
        raise bad_setting(settings.name_of(HANDLER),
                          'signed tokens need the package joserfc: pip install "kbroker[oauth]"') from None
    if settings[JWKS_URL] is None:
        raise bad_setting(settings.name_of(JWKS_URL),
                          'found none, expected the address of the keys: https://..., or file:///...')
    warnings = _unverified_claims(settings)
    tls = {name: text for name, text in options.items() if name.startswith('ssl.')}
    place = Place(settings[JWKS_URL], tls)
    if place.is_plain_http:
        warnings.append(f'{settings.name_of(JWKS_URL)} begins with http: every machine on the way can replace the '
                        'keys; use https')
    refresh = RefreshSettings(
        settings['sasl.oauthbearer.jwks.endpoint.refresh.ms'],
        settings['sasl.oauthbearer.jwks.endpoint.retry.backoff.ms'],
        settings['sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms'])
    token = TokenSettings(
        settings['sasl.oauthbearer.expected.issuer'], tuple(settings['sasl.oauthbearer.expected.audience']),
        settings['sasl.oauthbearer.clock.skew.seconds'], settings['sasl.oauthbearer.sub.claim.name'])
    keys = KeySet(place, surroundings.clock, surroundings.background, refresh)
    return SignedOAuthBearer(keys, token, surroundings.clock, warnings)
