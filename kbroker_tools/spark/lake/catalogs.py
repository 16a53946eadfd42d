"""The catalogs of Iceberg tables, and the access to the files of a table."""
from __future__ import annotations

import difflib
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker_tools.spark.lake.table_format import PROPERTY, TableUnavailable
from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

T = TypeVar('T')
NAME = 'name'
"""A property of `--catalog` that pyiceberg has as an argument: the name of the catalog. A SQL catalog keeps the tables
of several names apart."""
VERSION = '0.12.'
"""The versions of pyiceberg whose private names kbroker knows."""
TYPES = ('rest', 'sql', 'hive', 'glue', 'dynamodb', 'bigquery')
FILE_IO = 'py-io-impl'
SYNCED_FILE_IO = 'kbroker_tools.spark.lake.iceberg_private.SyncedFileIO'
NESTED = ('auth.', 'ssl.')
"""The beginnings of properties that pyiceberg has as nested dictionaries."""
INTEGERS = ('glue.max-retries',)
"""Properties that pyiceberg does not accept as texts."""
OF_OTHERS = ('header.', 'auth.', 'ssl.', 'adls.sas-token.')
CHECKED = ('s3.', 'gcs.', 'adls.', 'hdfs.', 'glue.', 'client.', 'hive.', 'rest.', 'dynamodb.')
"""The beginnings of properties whose names pyiceberg knows all."""
CONSTANT = re.compile(r'^[A-Z][A-Z0-9_]* = "([a-z0-9][a-z0-9._-]+)"', re.MULTILINE)
TEXT_LIMIT = 400
EXPIRY = re.compile(r'token-expires-at(-ms)?(\.|$)')
RENEWED_BEFORE_MS = 300_000


def quiet() -> None:
    """Keep the log records and warnings of pyiceberg and of its libraries from the terminal. Errors are raised, and
    kbroker reports them."""
    for name in ('pyiceberg', 'urllib3', 'botocore', 'sqlalchemy'):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    warnings.filterwarnings('ignore', module=r'pyiceberg\.')


@dataclass(frozen=True)
class CatalogSettings:
    """The properties of `--catalog` and of `--store-config`. Their names are pyiceberg's own."""

    catalog: Mapping[str, str]
    store: Mapping[str, str]

    @property
    def where(self) -> str:
        """The catalog, as messages name it. It has no password."""
        name = f'catalog {self.catalog.get(NAME, "default")}'
        uri = re.sub(r'//[^/]*@', '//', self.catalog.get('uri', '').partition('?')[0])
        return f'{name} ({uri})' if uri else name

    def open(self) -> Catalog:
        """Open the catalog. Raise IngestError if a property is wrong, and TableUnavailable if the catalog does not
        reply."""
        try:
            import pyiceberg
        except ModuleNotFoundError as error:
            raise IngestError(f'{error.name} is not installed: pip install "kbroker[iceberg]"') from None
        if not pyiceberg.__version__.startswith(VERSION):
            raise IngestError(f'found pyiceberg {pyiceberg.__version__}, expected {VERSION}*: pip install '
                              '"kbroker[iceberg]"')
        quiet()
        with explaining(self.where):
            try:
                return self._open()
            except Exception as error:
                if 'already exists' not in str(error):
                    raise
                return self._open()     # another driver made the tables of a new SQL catalog at the same time

    def _open(self) -> Catalog:
        from pyiceberg.catalog import PY_CATALOG_IMPL, load_catalog
        from pyiceberg.utils.config import Config, merge_config
        self._check_properties()
        name = self.catalog.get(NAME) or Config().get_default_catalog_name()
        properties: dict[str, Any] = {FILE_IO: SYNCED_FILE_IO}
        for key, value in {**self.catalog, **self.store}.items():
            if key != NAME:
                _put(properties, key, value)
        if PY_CATALOG_IMPL in properties:
            return load_catalog(name, **properties)
        found: dict[str, Any] = merge_config(Config().get_catalog_config(name) or {}, properties)
        kind = self._type(name, found)
        if kind in ('rest', 'sql', 'hive') and 'uri' not in found:
            raise IngestError(f'{self.where}: found no property uri, expected the address of the catalog')
        warehouse = str(found.get('warehouse', '/'))
        if kind != 'rest' and not warehouse.startswith('/') and ':' not in warehouse:
            raise IngestError(f'{self.where}: found warehouse {warehouse}, expected a URI, or a path that begins with '
                              '/: the catalog keeps the path as it is')
        if kind != 'rest':
            return load_catalog(name, **{**properties, 'type': kind})
        from kbroker_tools.spark.lake.iceberg_private import TimedRestCatalog
        # Old snapshots decide which files of an attempt are in use, so the catalog has to return all of them.
        return TimedRestCatalog(name, **{**found, 'snapshot-loading-mode': 'all'})

    def _type(self, name: str, found: Mapping[str, Any]) -> str:
        from pyiceberg.catalog import infer_catalog_type
        kind = found.get('type')
        if kind is None:
            try:
                inferred = infer_catalog_type(name, dict(found))
            except ValueError:
                inferred = None
            if inferred is None:
                raise IngestError(f'{self.where}: found neither a type nor a uri that begins with http, thrift, sqlite '
                                  f'or postgresql; expected the property type, one of {", ".join(TYPES)}')
            return inferred.value
        if str(kind).lower() not in TYPES:
            raise IngestError(f'{self.where}: found type {kind}, expected one of {", ".join(TYPES)}')
        return str(kind).lower()

    def _check_properties(self) -> None:
        """Raise IngestError for a name that pyiceberg does not know. It would ignore the property."""
        known = _known_names()
        for name in {**self.catalog, **self.store}:
            if name == FILE_IO:
                raise IngestError(f'{self.where}: found property {FILE_IO}, expected none: kbroker accesses files '
                                  'through pyarrow')
            if name in known or name == NAME or name.startswith(OF_OTHERS):
                continue
            close = difflib.get_close_matches(name, known - {FILE_IO}, 1, 0.8)
            if close or name.startswith(CHECKED):
                hint = f'; did you mean {close[0]}?' if close else ''
                raise IngestError(f'{self.where}: found property {name}, which pyiceberg does not know{hint}')


def _put(properties: dict[str, Any], key: str, value: str) -> None:
    """Put a property where pyiceberg reads it: `ssl.client.cert` is `cert` in `client` in `ssl`."""
    *path, last = key.split('.') if key.startswith(NESTED) else [key]
    for each in path:
        properties = properties.setdefault(each, {})
    properties[last] = int(value) if value.isdecimal() and (path or key in INTEGERS) else value


def _known_names() -> set[str]:
    """Return the names of the properties of pyiceberg, which are constants in its sources. The modules of some catalogs
    cannot be imported without further packages."""
    import pyiceberg
    room = Path(pyiceberg.__file__).parent
    sources = [room / 'io/__init__.py', *(room / 'catalog').glob('*.py'), *(room / 'catalog/rest').glob('*.py')]
    found = {name for each in sources for name in CONSTANT.findall(each.read_text('utf-8'))}
    return found | {'echo', 'pool_pre_ping', 'schema_version', 'init_catalog_tables'}


@dataclass
class FileAccess:
    """The access to the files of a table. It can be pickled.

    REST catalogs lend credentials of the object store for some time, such as an hour. pyiceberg reads them when it
    loads a table, and never renews them. So this class asks the catalog again, shortly before they expire, or when the
    store refuses them.
    """

    settings: CatalogSettings
    table: tuple[str, ...]
    location: str
    properties: dict[str, str]
    """The properties of pyiceberg's file access, with the credentials."""
    obtained_ms: float = field(default_factory=lambda: time.time() * 1000)
    catalog: Catalog | None = None
    _io: FileIO | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {'catalog': None, '_io': None}

    def io(self) -> FileIO:
        """Return pyiceberg's file access, with credentials that are valid."""
        if self._expires_soon():
            self._renew()
        if self._io is None:
            from pyiceberg.io import load_file_io
            self._io = load_file_io(dict(self.properties), self.location)
        return self._io

    def use(self, action: Callable[[FileIO], T]) -> T:
        """Return the result of an action on files. Repeat it once if it fails, and the catalog lends other credentials.

        Raise OSError or TableUnavailable if it fails for a while, and IngestError if it fails for good.
        """
        quiet()
        with explaining(f'{self.settings.where}, table {".".join(self.table)}'):
            return self._use(action)

    def _use(self, action: Callable[[FileIO], T]) -> T:
        io = self.io()
        try:
            return action(io)
        except OSError:
            before = self.properties
            if not self._is_lent():
                raise
            self._renew()
            if self.properties == before:
                raise
            return action(self.io())

    def _is_lent(self) -> bool:
        """Return True if the credentials are not those of `--catalog` and `--store-config`."""
        given = {**self.settings.catalog, **self.settings.store}
        return any(name.endswith(('session-token', 'oauth2.token')) or '.sas-token' in name
                   for name, value in self.properties.items() if given.get(name) != value)

    def _expires_soon(self) -> bool:
        found = [int(value) for name, value in self.properties.items() if EXPIRY.search(name) and value.isdecimal()]
        # A time that was over on arrival tells that the clocks differ. Then the store decides.
        if not found or min(found) <= self.obtained_ms:
            return False
        before = min(RENEWED_BEFORE_MS, (min(found) - self.obtained_ms) / 2)
        return time.time() * 1000 >= min(found) - before

    def _renew(self) -> None:
        """Borrow credentials again. Raise IngestError or TableUnavailable if the catalog does not lend them."""
        if self.catalog is None:
            self.catalog = self.settings.open()
        with explaining(self.settings.where):
            self.properties = self._borrowed(self.catalog)
        self.obtained_ms = time.time() * 1000
        self._io = None

    def _borrowed(self, catalog: Catalog) -> dict[str, str]:
        from pyiceberg.catalog.rest import RestCatalog
        if isinstance(catalog, RestCatalog):
            try:
                lent = catalog.load_credentials(self.table, self.location)
            except NotImplementedError:     # an older catalog lends credentials only with the whole table
                lent = {}
            if lent:
                return self.properties | _texts(lent) | dict(self.settings.store)
        return file_access(self.settings, catalog, catalog.load_table(self.table)).properties


def file_access(settings: CatalogSettings, catalog: Catalog, table: Any) -> FileAccess:
    """Return the access to the files of a table that was just loaded."""
    properties = _texts(table.io.properties) | dict(settings.store) | {FILE_IO: SYNCED_FILE_IO}
    return FileAccess(settings, table.name(), table.metadata_location, properties, catalog=catalog)


def _texts(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties that an access to files may need. pyiceberg adds those of the table, with the records of
    all jobs, and objects such as the login at a REST catalog."""
    return {name: value for name, value in properties.items() if isinstance(value, str)
            and not name.startswith(PROPERTY)}


DENIED = ('ACCESS_DENIED', 'AccessDenied', 'InvalidAccessKeyId', 'SignatureDoesNotMatch', 'ExpiredToken',
          'NO_SUCH_BUCKET', 'NoSuchBucket', 'INVALID_CLIENT_TOKEN_ID', 'INVALID_ACCESS_KEY_ID', 'SIGNATURE_DOES_NOT')
"""Parts of messages by which a store refuses a request that it will always refuse."""


@contextmanager
def explaining(where: str) -> Iterator[None]:
    """Replace an exception of pyiceberg or of its libraries by one for the user. `where` names the catalog or table."""
    try:
        yield
    except Exception as error:
        found = explained(error, where)
        if found is error:
            raise
        raise found from error


def explained(error: Exception, where: str) -> Exception:
    """Return the error for the user: IngestError if the user has to change something, otherwise TableUnavailable or
    the OSError itself."""
    from pyiceberg import exceptions as of_pyiceberg
    from requests import exceptions as of_requests
    if isinstance(error, IngestError | TableUnavailable):
        return error
    text = text_of(error)
    if isinstance(error, of_requests.RequestException):
        if isinstance(error, of_requests.SSLError | ValueError):
            return IngestError(f'{where}: {text}')
        return TableUnavailable(f'{where} does not reply: {text}')
    if isinstance(error, of_pyiceberg.NotInstalledError) and isinstance(error.__cause__, ImportError):
        return IngestError(f'{where}: {text} ({text_of(error.__cause__)})')
    if isinstance(error, of_pyiceberg.UnauthorizedError | of_pyiceberg.ForbiddenError | of_pyiceberg.OAuthError
                  | of_pyiceberg.AuthorizationExpiredError):
        return IngestError(f'{where} refuses the request for want of rights: {text}')
    if isinstance(error, of_pyiceberg.ServerError | of_pyiceberg.ServiceUnavailableError
                  | of_pyiceberg.TooManyRequestsError | of_pyiceberg.WaitingForLockException):
        return TableUnavailable(f'{where}: {text}')
    if isinstance(error, OSError):
        if 'TooSkewed' in text or 'TOO_SKEWED' in text:
            return IngestError(f'{where}: the clock of this machine differs from the clock of the store: {text}')
        if isinstance(error, PermissionError) or any(each in text for each in DENIED):
            return IngestError(f'{where}: the store refuses access: {text}')
        return error
    if _is_unavailable(error):
        return TableUnavailable(f'{where}: {text}')
    return IngestError(f'{where}: {text}')


UNAVAILABLE = {('sqlalchemy.exc', 'DBAPIError'), ('botocore.exceptions', 'ConnectionError'),
               ('botocore.exceptions', 'HTTPClientError'), ('thrift.transport.TTransport', 'TTransportException')}
"""Errors of libraries that may be missing: the database or the connection fails."""


def _is_unavailable(error: Exception) -> bool:
    return any((each.__module__, each.__name__) in UNAVAILABLE for each in type(error).__mro__)


def text_of(error: BaseException) -> str:
    """Return the message of an error of a library, in one line."""
    found: object = getattr(error, 'orig', None) or error      # SQLAlchemy adds lines about itself
    reason = getattr(error.args[0] if error.args else None, 'reason', None)
    found = reason or found             # requests adds the attempts of urllib3
    text = ' '.join(str(found).split()) or type(found).__name__
    return text if len(text) <= TEXT_LIMIT else f'{text[:TEXT_LIMIT]} ...'
