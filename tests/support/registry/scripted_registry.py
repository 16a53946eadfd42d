"""A schema registry in this process, with the requests of Confluent's API that clients use, guids, and faults that a
test scripts. Apicurio, the real registry of the tests, has no guids and does not fail on demand.
"""
import contextlib
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

NAMESPACE = uuid.UUID(int=35)


class ScriptedRegistry:
    """The schemas by their ids from 1, and the ids of each subject's versions. `requests` has what clients asked, and
    `answers` maps a path to an answer (status, headers, body) that a test scripts."""

    def __init__(self, certificate=None, authority=None):
        self.schemas, self.subjects, self.requests, self.answers, self.failures = [], {}, [], {}, 0
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                registry._handle(self, None)

            def do_POST(self):
                registry._handle(self, json.loads(self.rfile.read(int(self.headers['Content-Length']))))

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.scheme = 'http'
        if certificate is not None:
            import ssl
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if authority is not None:
                context.load_verify_locations(authority)
                context.verify_mode = ssl.CERT_REQUIRED
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.server.handle_error = lambda *_: None
            self.scheme = 'https'
        self.url = f'{self.scheme}://127.0.0.1:{self.server.server_address[1]}'

    def add(self, subject, text, kind='AVRO', references=()):
        """Register a schema, and return its id."""
        schema = {'schema': text, 'schemaType': kind, 'references': list(references)}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def guid(self, number):
        return uuid.uuid5(NAMESPACE, str(number))

    @contextlib.contextmanager
    def running(self):
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def _handle(self, request, body):
        path = urlsplit(request.path).path
        self.requests.append((request.command, path, dict(request.headers)))
        if self.failures:
            self.failures -= 1
            status, headers, answer = 503, {}, {'error_code': 50003, 'message': 'the store is\nnot ready'}
        elif path in self.answers:
            status, headers, answer = self.answers[path]
        else:
            status, headers, answer = self._answer([unquote(part) for part in path.split('/')[1:]], body)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        request.send_response(status)
        for name, text in {'Content-Length': str(len(content)), **headers}.items():
            request.send_header(name, text)
        request.end_headers()
        request.wfile.write(content)

    def _answer(self, parts, body):
        match parts:
            case ['schemas', 'ids', number] if 0 < int(number) <= len(self.schemas):
                return 200, {}, self._schema(int(number))
            case ['schemas', 'guids', guid]:
                for number in range(1, len(self.schemas) + 1):
                    if str(self.guid(number)) == guid:
                        return 200, {}, self._schema(number)
                return 404, {}, {'error_code': 40403, 'message': 'Schema not found'}
            case ['subjects', subject, 'versions'] if body is not None:
                number = self.add(subject, body['schema'], body.get('schemaType', 'AVRO'), body.get('references') or ())
                return 200, {}, {**self._schema(number), 'subject': subject}
            case ['subjects', subject] if body is not None and subject in self.subjects:
                found = {'schema': body['schema'], 'schemaType': body.get('schemaType', 'AVRO'),
                         'references': body.get('references') or []}
                number = self.schemas.index(found) + 1
                return 200, {}, {**self._schema(number), 'subject': subject,
                                 'version': self.subjects[subject].index(number) + 1}
            case ['subjects', subject, 'versions', version] if subject in self.subjects:
                versions = self.subjects[subject]
                at = len(versions) if version == 'latest' else int(version)
                if 0 < at <= len(versions):
                    return 200, {}, {**self._schema(versions[at - 1]), 'subject': subject, 'version': at}
                return 404, {}, {'error_code': 40402, 'message': 'Version not found'}
            case ['subjects', *_]:
                return 404, {}, {'error_code': 40401, 'message': 'Subject not found'}
            case ['schemas', 'ids', _]:
                return 404, {}, {'error_code': 40403, 'message': 'Schema not found'}
        return 404, {}, b'<html>Not Found</html>'

    def _schema(self, number):
        return {**self.schemas[number - 1], 'id': number, 'guid': str(self.guid(number))}
