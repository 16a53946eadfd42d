import ssl

from kbroker.network.transport import Transport

CLIENT_AUTH: dict[str, ssl.VerifyMode]

def server_context(settings: dict[str, str]) -> ssl.SSLContext: ...

class TlsTransport(Transport):
    def __init__(self, fd: int, context: ssl.SSLContext) -> None: ...
