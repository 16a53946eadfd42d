"""The login mechanisms, created with a test's settings, and the tokens that clients send to them."""
import base64
import json

from kbroker.base.clock import ManualClock, Timers
from kbroker.security.mechanisms import HANDLER, LOGIN_MODULES, VALIDATOR, mechanism_for
from kbroker.security.scram import credential_of
from kbroker.security.surroundings import Background, Surroundings

NOW_S = 1_700_000_000
JAAS = 'sasl.jaas.config'
OAUTH = f'{LOGIN_MODULES["OAUTHBEARER"]} required;'
SCRAM_USERS = {(name, 'alice'): credential_of(name, 'horse', b'salt', 4096) for name in ('SCRAM-SHA-256',
                                                                                        'SCRAM-SHA-512')}


DEFAULTS = {JAAS: None, HANDLER: None, 'sasl.oauthbearer.jwks.endpoint.url': None,
            'sasl.oauthbearer.jwks.endpoint.refresh.ms': 3_600_000,
            'sasl.oauthbearer.jwks.endpoint.retry.backoff.ms': 100,
            'sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms': 10_000,
            'sasl.oauthbearer.expected.issuer': None, 'sasl.oauthbearer.expected.audience': (),
            'sasl.oauthbearer.allow.unverified.issuer': False, 'sasl.oauthbearer.allow.unverified.audience': False,
            'sasl.oauthbearer.clock.skew.seconds': 30, 'sasl.oauthbearer.sub.claim.name': 'sub'}


UNVERIFIED = {'sasl.oauthbearer.allow.unverified.issuer': True, 'sasl.oauthbearer.allow.unverified.audience': True}


class Settings:
    """The settings of a mechanism, with Kafka's defaults."""

    def __init__(self, values):
        self._values = DEFAULTS | values

    def __getitem__(self, name):
        return self._values[name]

    def name_of(self, name):
        return f'listener.name.x.y.{name}'


def made(name, values=None, *, is_guarded=True):
    clock = ManualClock(NOW_S * 1000)
    surroundings = Surroundings(lambda *key: SCRAM_USERS.get(key), clock, b's' * 32,
                                Background(Timers(clock), lambda job, done: done(job())))
    return mechanism_for(name, Settings(values or {}), surroundings, is_guarded=is_guarded)


def write_key_set(directory, key):
    """Write the public half of a key as a key set. Return the URL of the file."""
    file = directory / 'keys.json'
    file.write_text(json.dumps({'keys': [key.as_dict(private=False)]}))
    return f'file://{file}'


def every_mechanism(key_file):
    return [made('PLAIN', {JAAS: f'{LOGIN_MODULES["PLAIN"]} required user_alice=horse;'}), made('SCRAM-SHA-256'),
            made('SCRAM-SHA-512'), made('OAUTHBEARER', {JAAS: OAUTH}), loaded(key_file)]


def loaded(key_file):
    signed = made('OAUTHBEARER', {JAAS: OAUTH, HANDLER: VALIDATOR, 'sasl.oauthbearer.jwks.endpoint.url': key_file,
                                   **UNVERIFIED})
    signed.load()
    return signed


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b'=')


TOKENS = [
    b'\0alice\0horse', b'n,,n=alice,r=abc', b'n,a=alice,n=alice,r=abc,x=1', b'c=biws,r=abcdef,p=AAAA', b'\x01',
    b'n,,\x01auth=Bearer %b.%b.\x01\x01' % (part({'alg': 'none'}), part({'sub': 'alice', 'exp': NOW_S + 9})),
    *(b'n,,\x01auth=Bearer %b.%b.%b\x01\x01' % (part({'alg': algorithm, 'kid': 'k'}), part({'sub': 'alice'}), b'A' * 86)
      for algorithm in ('ES256', 'RS256', 'EdDSA', 'HS256', 'none')),
]
