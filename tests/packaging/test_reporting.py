"""The security policy and the forms for issues name commands, pages and settings that exist."""
import re
import tomllib

import pytest
import yaml
from click.testing import CliRunner
from support.runner.pages import ROOT

from kbroker.daemon.main import main
from kbroker.settings.table import SETTINGS

PLACE = ROOT / '.github'
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
FILES = [*PLACE.glob('*.md'), *PLACE.glob('ISSUE_TEMPLATE/*.yml')]
FORMS = [path for path in FILES if path.suffix == '.yml' and path.stem != 'config']


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_a_file_names_only_pages_commands_and_settings_that_exist(path):
    text = path.read_text()
    blob = f'{PROJECT["urls"]["Source"]}/blob/main/'
    for link in re.findall(r'\]\((.*?)\)', text):
        if not link.startswith(f'{PROJECT["urls"]["Source"]}/security/'):
            page = link.removeprefix(blob).removeprefix('../').partition('#')[0]
            assert (ROOT / page).is_file(), link
    for command in re.findall(r'`(kbroker[\w-]*)', text):
        assert command in PROJECT['scripts'] or f'{command}.' in text, command
    for setting in re.findall(r'`(kbroker\.[\w.]+)`', text):
        assert setting in SETTINGS
    for subcommand, option in re.findall(r'`kbroker (\w*) ?(--\w+)', text):
        assert option in CliRunner().invoke(main, [*subcommand.split(), '--help']).output


@pytest.mark.parametrize('path', FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_the_host_requires_and_asks_for_the_version(path):
    form = yaml.safe_load(path.read_text())
    assert form.keys() == {'name', 'description', 'labels', 'body'}
    fields = [field for field in form['body'] if field['type'] != 'markdown']
    assert len({field['id'] for field in fields}) == len(fields)
    assert all(field['type'] in ('textarea', 'input') and field['attributes']['label'] for field in fields)
    assert '`kbroker --version`' in path.read_text()


def test_a_vulnerability_is_never_reported_in_a_public_form():
    settings = yaml.safe_load((PLACE / 'ISSUE_TEMPLATE' / 'config.yml').read_text())
    contact, = settings['contact_links']
    assert settings['blank_issues_enabled'] is False
    assert contact['url'] == f'{PROJECT["urls"]["Source"]}/security/advisories/new'
    assert contact['url'] in (PLACE / 'SECURITY.md').read_text()
