"""The pages of the documents as a site, which `kbroker docs` opens without a network.

A wheel has the site as one archive, which is unpacked once into the user's cache. In a checkout, `make docs` builds the
site.
"""
import hashlib
import os
import sys
import tarfile
import tempfile
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from kbroker import __version__

try:
    from lzma import LZMAError
except ImportError:     # Python was built without liblzma: tarfile raises an error of its own
    LZMAError = tarfile.TarError  # type: ignore[assignment, misc]

ARCHIVE = Path(__file__).with_name('site.tar.xz')
ROOT = Path(__file__).parents[2]
"""The checkout, or the directory into which a wheel was installed."""


class NoSiteError(Exception):
    """There is no site to open. The text is one line with the remedy."""


def start_page(environment: Mapping[str, str]) -> Path:
    """Return the first page of the site. Raise NoSiteError if this build has no site, or if it cannot be unpacked."""
    if (ROOT / 'docs' / 'build.py').exists():
        start = ROOT / 'build' / 'site' / 'index.html'
        if not start.exists():
            raise NoSiteError(f'found no {start}, expected the site: run `make docs` in {ROOT}')
        return start
    if not ARCHIVE.exists():
        raise NoSiteError(f'this build of kbroker has no pages: found no {ARCHIVE}, expected the archive of a released '
                          'package; in a checkout, `make docs` builds the pages')
    cache = _cache_directory(environment)
    try:
        return _unpacked(cache) / 'index.html'
    except OSError as error:
        raise NoSiteError(f'cannot unpack the pages into {cache}: {error.strerror}; set XDG_CACHE_HOME to a directory '
                          'that you may write') from None
    except (tarfile.TarError, EOFError, LZMAError) as error:
        raise NoSiteError(f'cannot read {ARCHIVE}: {error}; install kbroker again') from None


def _cache_directory(environment: Mapping[str, str]) -> Path:
    given = environment.get('XDG_CACHE_HOME', '')
    return Path(given if os.path.isabs(given) else os.path.expanduser('~/.cache')) / 'kbroker'


def _unpacked(cache: Path) -> Path:
    """Return the directory with the unpacked site. Its name has the hash of the archive, so it is never out of date."""
    content = ARCHIVE.read_bytes()
    directory = cache / f'docs-{__version__}-{hashlib.sha256(content).hexdigest()[:16]}'
    if directory.exists():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary, tarfile.open(ARCHIVE, 'r:xz') as archive:
        # Versions before 3.11.4 have no filters. The archive is part of this package.
        archive.extraction_filter = getattr(tarfile, 'data_filter', None)
        unpacked = Path(temporary) / 'site'
        archive.extractall(unpacked)
        try:
            unpacked.rename(directory)
        except OSError:
            if not directory.exists():      # another process may have unpacked it in the meantime
                raise
    return directory


def can_show(environment: Mapping[str, str]) -> bool:
    """Return whether a browser has a place to open its window."""
    return not sys.platform.startswith('linux') or any(
        environment.get(name) for name in ('DISPLAY', 'WAYLAND_DISPLAY', 'BROWSER'))


def show(address: str) -> bool:
    """Open the address in the user's browser. Return whether a browser has started."""
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
