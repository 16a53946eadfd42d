"""The storage of a Delta table: its directory as a filesystem of pyarrow, and the texts of its errors."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from kbroker_tools.spark.lake.store import Store
from kbroker_tools.spark.lake.table_format import TableUnavailable
from kbroker_tools.spark.ledger import IngestError

COLOUR = re.compile(r'\x1b\[\d*m')
ENDPOINT = re.compile(r'https?://[^\s/]+(/\S*)?')
BACKTRACE = re.compile(r'\n\s*0: .*', re.DOTALL)
S3_ERROR = re.compile(r'<\?xml.*?<Code>(.*?)</Code>.*?</Error>', re.DOTALL)
WRONG = ('Forbidden', 'Unauthorized', 'AccessDenied', 'InvalidAccessKeyId', 'SignatureDoesNotMatch',
         'RequestTimeTooSkewed', 'ExpiredToken', 'NoSuchBucket', 'Permission denied', 'URL scheme is not allowed')
"""Parts of the errors of a store that another try does not mend."""
FAILED = ('Generic S3 error', 'Generic GCS error', 'Generic MicrosoftAzure error', 'Generic HTTP error', 'object store',
          'HTTP error')


def location(uri: str) -> str:
    """Return the form of a URI that all libraries and all processes understand alike: an absolute path, or a URI of an
    object store without a slash at the end."""
    import os
    from urllib.parse import unquote, urlsplit
    if uri.startswith('file:'):
        return unquote(urlsplit(uri).path).rstrip('/')
    return uri.rstrip('/') if '://' in uri else os.path.abspath(uri)


def open_store(where: str, settings: Mapping[str, str]) -> Store:
    """Return the directory at a location. delta-rs reads and writes the files of an object store, so one set of
    settings serves the log and the data."""
    scheme, found, rest = where.partition('://')
    if not found:
        return Store(fs.LocalFileSystem(), where)
    container, _, path = rest.partition('/')
    return Store(fs.PyFileSystem(_Handler(f'{scheme}://{container}', dict(settings))), path)


def check_settings(name: str, settings: Mapping[str, str]) -> None:
    """Raise IngestError if an endpoint is no URL, on which delta-rs would panic."""
    for key, value in settings.items():
        if 'endpoint' in key.lower() and not ENDPOINT.fullmatch(value):
            raise IngestError(f'{name}: found {key} {value!r} in --store-config, expected a URL such as '
                              'https://host:port')
    if not name.strip():
        raise IngestError('--to-table: found an empty name, expected a path or a URI')


def one_line(error: BaseException) -> str:
    """Return the text of an error of delta-rs as one line. The error has colours and spans several lines. Some have a
    backtrace, or the reply of the store in XML."""
    text = f'no {error} in it' if isinstance(error, KeyError) else BACKTRACE.sub('', COLOUR.sub('', str(error)))
    return ' '.join(S3_ERROR.sub(r'\1', text).replace('\u21b3', '').split())


def failure(what: str, error: Exception) -> Exception:
    """Return the exception that reports an error of delta-rs: IngestError if another try cannot mend it."""
    text = one_line(error)
    if 'Unknown scheme' in text:
        return IngestError(f'{what}: expected a path, or the URI of an object store such as s3://bucket/table')
    if isinstance(error, PermissionError) or any(each in text for each in WRONG):
        return IngestError(f'{what}: the store refused: {text}; check the rights, the clock and --store-config' + (
            '; a URL with http:// needs AWS_ALLOW_HTTP=true there' if 'URL scheme' in text else ''))
    if isinstance(error, OSError) or any(each in text for each in FAILED):
        return TableUnavailable(f'{what}: the store failed: {text}')
    return IngestError(f'{what}: {text}')


@contextmanager
def plain_errors(what: str = '') -> Iterator[None]:
    """Raise the OSErrors of delta-rs and pyarrow with their class, and with one line."""
    try:
        yield
    except OSError as error:
        raise type(error)(f'{what}{one_line(error)}') from None


class _Handler(DeltaStorageHandler):
    """The handler of delta-rs with errors of one line, and with an output stream that pyarrow can write to. The stream
    of delta-rs takes only `bytes`, and pyarrow passes buffers."""

    def open_input_file(self, path: str) -> pa.PythonFile:
        with plain_errors():
            return super().open_input_file(path)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        with plain_errors():
            return pa.PythonFile(_Output(self._handler.open_output_stream(path, metadata)), mode='w')

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        with plain_errors():
            return super().get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        with plain_errors():
            return super().get_file_info_selector(selector)

    def delete_file(self, path: str) -> None:
        with plain_errors():
            super().delete_file(path)

    def delete_dir(self, path: str) -> None:
        with plain_errors():
            super().delete_dir(path)


class _Output:
    """A file object of Python that writes to a stream of delta-rs."""

    def __init__(self, stream: Any):
        self._stream = stream
        self._size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        written = bytes(data)
        with plain_errors():
            self._stream.write(written)
        self._size_bytes += len(written)
        return len(written)

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with plain_errors():
                self._stream.close()

    @staticmethod
    def readable() -> bool:
        return False

    @staticmethod
    def writable() -> bool:
        return True

    @staticmethod
    def seekable() -> bool:
        return False
