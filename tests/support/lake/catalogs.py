"""Catalogs of Iceberg tables for tests."""
import contextlib
import pathlib
import subprocess
from collections.abc import Iterator, Mapping

from support.kafka.apache_kafka import compiled, temporary_files

LIMIT_S = 120
REST = pathlib.Path(__file__).parent / 'rest'


def sql_catalog(directory: pathlib.Path) -> dict[str, str]:
    """Return the properties of a catalog in SQLite, whose tables are below the directory."""
    (directory / 'warehouse').mkdir(parents=True, exist_ok=True)
    return {'type': 'sql', 'uri': f'sqlite:///{directory}/catalog.db', 'warehouse': str(directory / 'warehouse')}


@contextlib.contextmanager
def rest_catalog(directory: pathlib.Path, warehouse: str | None = None,
                 settings: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Run the REST catalog of Iceberg's tests, on the loopback address. Yield the properties by which clients open it.

    `warehouse` is a directory below `directory`, or a URI. `settings` are properties of the catalog's own access to the
    files, in the words of Iceberg's Java library.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = ['java', '-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1', temporary_files(),
               '-Dorg.slf4j.simpleLogger.defaultLogLevel=error', '-cp', compiled(REST), 'RestCatalog',
               f'uri=jdbc:sqlite:{directory / "rest.db"}', f'warehouse={warehouse or directory / "warehouse"}',
               *(f'{name}={value}' for name, value in (settings or {}).items())]
    with open(directory / 'rest.log', 'w') as log, subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            port = process.stdout.readline().strip()
            assert port, (directory / 'rest.log').read_text()
            yield {'type': 'rest', 'uri': f'http://127.0.0.1:{port}'}
        finally:
            process.kill()


def maintain(directory: pathlib.Path, table: str, since: str) -> list[str]:
    """Let Iceberg's own library find the files with rows since a time. It then rewrites the manifests of the table, and
    expires all snapshots but the newest. `directory` is that of `sql_catalog`."""
    command = ['java', '-Xmx256m', temporary_files(), '-Dorg.slf4j.simpleLogger.defaultLogLevel=error',
               '-cp', compiled(REST), 'Maintenance', str(directory / 'catalog.db'), str(directory / 'warehouse'),
               table, since]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def s3_settings(endpoint: str) -> dict[str, str]:
    """Return the settings of the REST catalog's own access to an S3 store."""
    return {'io-impl': 'org.apache.iceberg.aws.s3.S3FileIO', 's3.endpoint': endpoint, 's3.path-style-access': 'true',
            'client.region': 'us-east-1', 's3.access-key-id': 'key', 's3.secret-access-key': 'secret'}
