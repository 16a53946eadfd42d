import ssl

from kbroker.network.transport import Transport

class TlsTransport(Transport):
    def __init__(self, fd: int, context: ssl.SSLContext) -> None: ...
