"""`kbroker docs` opens the pages that a package carries, or says in one line what is missing."""
import io
import lzma
import tarfile
import webbrowser

import pytest
from click.testing import CliRunner
from support.runner.pages import ROOT, load

from kbroker.daemon import docs
from kbroker.daemon.main import main

LARGEST_ARCHIVE_BYTES = 300_000
"""A wheel may have 6 MB, of which the compiled modules take 5.7."""


@pytest.fixture
def opened(monkeypatch):
    """The addresses that the browser has opened."""
    addresses = []
    monkeypatch.setattr(webbrowser, 'open', lambda address: addresses.append(address) or True)
    monkeypatch.setenv('DISPLAY', ':0')
    return addresses


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that installs an archive with a page into a directory, as a wheel does."""
    def install(text):
        archive = tmp_path / 'installed' / 'site.tar.xz'
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, 'w:xz') as written:
            page = tarfile.TarInfo('index.html')
            page.size = len(text)
            written.addfile(page, io.BytesIO(text))
        return archive
    monkeypatch.setattr(docs, 'ROOT', tmp_path)
    monkeypatch.setattr(docs, 'ARCHIVE', tmp_path / 'installed' / 'site.tar.xz')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    return install


def run(*arguments):
    return CliRunner().invoke(main, ['docs', *arguments])


def page_of(result):
    assert (result.exit_code, result.stderr) == (0, '')
    return result.stdout.strip().removeprefix('file://')


def test_the_pages_of_a_package_are_unpacked_once_and_opened(package, opened, tmp_path):
    package(b'first')
    for _ in range(2):
        result = run()
        with open(page_of(result)) as page:
            assert page.read() == 'first'
        assert opened.pop() == result.stdout.strip()
    assert len(list((tmp_path / 'cache' / 'kbroker').iterdir())) == 1
    package(b'second')
    with open(page_of(run())) as page:
        assert page.read() == 'second', 'another build of the version has other pages'


@pytest.mark.parametrize('arguments', [['--print'], []])
def test_no_browser_is_opened_if_it_is_not_wanted_or_has_no_display(package, opened, monkeypatch, arguments):
    package(b'page')
    if not arguments:
        for name in ('DISPLAY', 'WAYLAND_DISPLAY', 'BROWSER'):
            monkeypatch.delenv(name, raising=False)
    assert page_of(run(*arguments)).endswith('/index.html')
    assert opened == []


def test_a_browser_that_does_not_start_is_reported_with_the_address(package, opened, monkeypatch):
    package(b'page')
    monkeypatch.setattr(webbrowser, 'open', lambda address: False)
    result = run()
    assert (result.exit_code, result.stderr) == (
        1, f'kbroker: no browser has started: open {result.stdout.strip()} in one\n')


def test_a_package_without_pages_says_where_they_come_from(package, tmp_path):
    result = run()
    assert (result.exit_code, result.stderr) == (
        1, f'kbroker: this build of kbroker has no pages: found no {tmp_path}/installed/site.tar.xz, expected the '
           'archive of a released package; in a checkout, `make docs` builds the pages\n')


def test_a_checkout_opens_the_site_that_make_docs_has_built(package, opened, tmp_path):
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'docs' / 'build.py').touch()
    start = tmp_path / 'build' / 'site' / 'index.html'
    result = run()
    assert (result.exit_code, result.stderr) == (
        1, f'kbroker: found no {start}, expected the site: run `make docs` in {tmp_path}\n')
    start.parent.mkdir(parents=True)
    start.touch()
    assert page_of(run()) == str(start)


def test_a_cache_that_cannot_be_written_and_a_damaged_archive_are_one_line(package, tmp_path):
    archive = package(b'page')
    (tmp_path / 'cache').touch()
    assert run().stderr == (f'kbroker: cannot unpack the pages into {tmp_path}/cache/kbroker: Not a directory; set '
                            'XDG_CACHE_HOME to a directory that you may write\n')
    (tmp_path / 'cache').unlink()
    for content in (b'', b'no archive', archive.read_bytes()[:40], lzma.compress(b'no archive')):
        archive.write_bytes(content)
        result = run()
        assert (result.exit_code, result.stderr.count('\n')) == (1, 1)
        assert result.stderr.startswith(f'kbroker: cannot read {archive}: ')
        assert result.stderr.endswith('; install kbroker again\n')
    assert list((tmp_path / 'cache' / 'kbroker').iterdir()) == []


def test_the_archive_of_a_package_is_small_and_has_nothing_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv('SOURCE_DATE_EPOCH', '1700000000')
    archive = tmp_path / 'site.tar.xz'
    load(ROOT / 'docs' / 'build.py').write_archive(archive)
    assert archive.stat().st_size < LARGEST_ARCHIVE_BYTES
    with tarfile.open(archive) as members:
        names = [member.name for member in members]
        assert names == sorted(names)
        assert {'index.html', 'docs/stuck.html', 'man/kbroker.8.html', 'site.css', 'site.js', 'sections.js'} <= {*names}
        assert {(member.mtime, member.mode, member.uid, member.gid, member.uname) for member in members} == {
            (1700000000, 0o644, 0, 0, '')}
