"""The README that a package index shows has links that work without the repository beside it."""
import email
import re
import subprocess
import sys
import tomllib

from support.runner.pages import ROOT, text_of

from kbroker import __version__

SOURCE = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['urls']['Source']
TARGET = re.compile(r'\]\(([^)]*)\)')


def test_each_link_of_the_package_leads_to_a_file_of_its_version(tmp_path):
    subprocess.run([sys.executable, 'setup.py', '--quiet', 'egg_info', '--egg-base', str(tmp_path)], cwd=ROOT,
                   check=True, capture_output=True)
    metadata = email.message_from_string((tmp_path / 'kbroker.egg-info' / 'PKG-INFO').read_text())
    assert metadata['Description-Content-Type'] == 'text/markdown'
    text = metadata.get_payload()
    links = TARGET.findall(text)
    assert len(links) == len(TARGET.findall(text_of('README.md'))) > 5
    for link in links:
        if link.startswith(SOURCE):
            kind, version, page = re.fullmatch(rf'{SOURCE}/(blob|raw)/v([^/]+)/([^#]+)(?:#.*)?', link).groups()
            assert (version, kind) == (__version__, 'raw' if page.endswith(('.svg', '.png')) else 'blob')
            assert (ROOT / page).exists(), link
        else:
            assert re.match('https://|#', link), link
    assert [re.sub(TARGET, '', line) for line in text.split('\n') if line.strip()] == [
        re.sub(TARGET, '', line) for line in text_of('README.md').split('\n') if line.strip()]
