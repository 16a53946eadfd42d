"""The addresses that the broker reports to clients, and warnings about listeners that other machines reach.

The functions may wait for the resolver.
"""
import ipaddress
import socket

from kbroker.base.errors import ConfigError
from kbroker.base.lean_dataclasses import replace
from kbroker.settings.config import Config
from kbroker.settings.listeners import Listener

CONTAINER_ID_DIGITS = 12
"""The length of the host name that Docker and Podman give a container: the first digits of its id."""
HEX_DIGITS = set('0123456789abcdef')


def addresses_for_clients(config: Config) -> tuple[list[Listener], list[str]]:
    """Return (addresses for clients, warnings for the operator). An empty host becomes this machine's name.

    Raise ConfigError if that name is needed and does not resolve. The function may wait for the resolver.
    """
    listeners = config.advertised
    unnamed = [listener for listener in listeners if not listener.host]
    if not unnamed:
        return listeners, []
    name, addresses = socket.gethostname(), set[str]()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        addresses = {str(address[0]).partition('%')[0] for *_, address in found}
    except (OSError, UnicodeError):
        raise ConfigError('advertised.listeners', f'advertised.listeners: found no host for {unnamed[0]}, and this '
                          f'machine\'s name {name!r} does not resolve; expected the name or address that clients '
                          f'connect to: advertised.listeners={replace(unnamed[0], host="HOST")}') from None
    warnings = []
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        warnings.append(f'clients connect to {name}, which is {", ".join(sorted(addresses))} here; clients '
                        'on other machines may need another name: see advertised.listeners')
    else:
        name = found[0][3] or name
    return [replace(listener, host=listener.host or name) for listener in listeners], warnings


def may_be_unreachable(config: Config, advertised: list[Listener]) -> list[Listener]:
    """Return the listeners that other machines reach, although they advertise an address that is of no use there.

    Such an address is this machine itself, or the id of a container, which is the name of the machine in it.
    """
    bound = {listener.name: listener for listener in config.bound_listeners}
    return [listener for listener in advertised
            if (is_own_machine(listener.host) or _is_container_id(listener.host))
            and listener.name in bound and not is_loopback(bound[listener.name].host)]


def is_own_machine(host: str) -> bool:
    """Return whether a client that connects to `host` reaches its own machine. The resolver is not asked."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == 'localhost' or host.endswith('.localhost')


def _is_container_id(host: str) -> bool:
    return len(host) == CONTAINER_ID_DIGITS and set(host) <= HEX_DIGITS and host == socket.gethostname()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a listener at `host`. An empty host means every interface."""
    try:
        return ipaddress.ip_address(host or '0.0.0.0').is_loopback
    except ValueError:
        pass        # a name
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address[0]).partition('%')[0]).is_loopback for *_, address in found)


def check_exposure(config: Config) -> list[str]:
    """Return warnings about listeners that other machines reach.

    Raise ConfigError if clients of such a listener do not authenticate and `kbroker.allow.insecure.listener` is false.
    """
    warnings = []
    exposed = [listener for listener in config.bound_listeners if not is_loopback(listener.host)]
    for listener in exposed:
        settings = config.for_listener(listener.name)
        has_certificates = listener.has_tls and settings['ssl.client.auth'] == 'required'
        if not listener.has_login and not has_certificates:
            if not config.kbroker_allow_insecure_listener:
                raise ConfigError('listeners', f'listeners: other machines reach {listener}, and its clients do not '
                                  'log in. Expected an address of loopback, SASL, or TLS with ssl.client.auth='
                                  'required; kbroker.allow.insecure.listener=true starts the broker nevertheless')
            warnings.append(f'every machine that reaches {listener} may use it without a login')
        weak = {'PLAIN', 'OAUTHBEARER'}.intersection(settings['sasl.enabled.mechanisms'])
        if listener.has_login and not listener.has_tls and weak:
            warnings.append(f'{listener} has no TLS: {" and ".join(sorted(weak))} send secrets that others can read; '
                            'SCRAM does not')
    if exposed and config.authorizer_class_name and config.allow_everyone_if_no_acl_found:
        warnings.append('allow.everyone.if.no.acl.found=true: every client may use what no ACL is about')
    return warnings


def check_exposed_metrics(config: Config, listener: Listener) -> list[str]:
    """Return warnings about `metrics.listen`, whose parsed address is `listener`.

    Raise ConfigError if other machines reach it, and it has no TLS or its clients do not authenticate.
    """
    if is_loopback(listener.host):
        return []
    has_certificates = listener.has_tls and config.for_listener(listener.name)['ssl.client.auth'] == 'required'
    if listener.has_tls and (config.metrics_token_file or has_certificates):
        return []
    if not config.kbroker_allow_insecure_listener:
        raise ConfigError('metrics.listen', f'metrics.listen: other machines reach {config.metrics_listen}. Expected '
                          'an address of loopback, or https:// with metrics.token.file or with '
                          'listener.name.metrics.ssl.client.auth=required; kbroker.allow.insecure.listener=true starts '
                          'the broker nevertheless')
    if listener.has_tls or not (config.metrics_token_file or has_certificates):
        return [f'every machine that reaches {config.metrics_listen} may read metrics and names of topics']
    return [f'metrics.listen: {config.metrics_listen} has no TLS, so others on the way may read its token']
