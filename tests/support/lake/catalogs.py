"""Catalogs of Iceberg tables for tests."""
import pathlib


def sql_catalog(directory: pathlib.Path) -> dict[str, str]:
    """Return the properties of a catalog in SQLite, whose tables are below the directory."""
    (directory / 'warehouse').mkdir(parents=True, exist_ok=True)
    return {'type': 'sql', 'uri': f'sqlite:///{directory}/catalog.db', 'warehouse': str(directory / 'warehouse')}
