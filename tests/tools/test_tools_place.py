"""Commands find their broker: by options, by variables, by a profile, or at 127.0.0.1:9092."""
import pytest
from support.runner.command_runner import run_command, run_in_process
from support.runner.pages import blocks

from kbroker_tools.base.command import ToolError
from kbroker_tools.cluster import place

NOBODY = '127.0.0.1:1'
"""An address at which no process listens."""
PROFILES = '''
[default]
bootstrap-server = "127.0.0.1:2"

[prod]
bootstrap-server = "127.0.0.1:3"
command-config = "prod.properties"

[other]
command-config = "other.properties"
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A directory of settings with profiles. No variable is set."""
    for name in (place.SERVER_VARIABLE, place.CONFIG_VARIABLE, place.PROFILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('XDG_CONFIG_HOME', str(tmp_path))
    directory = tmp_path / 'kbroker'
    directory.mkdir()
    (directory / 'profiles.toml').write_text(PROFILES)
    (directory / 'prod.properties').write_text('security.protocol=PLAINTEXT\n')
    (directory / 'other.properties').write_text('bootstrap.servers=127.0.0.1:4\n')
    return directory


def answer(*arguments):
    done = run_in_process('topics', '--list', *arguments)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (1, '', 1)
    return done.stderr


def test_the_order_of_the_sources(home, monkeypatch):
    assert '127.0.0.1:2 is that of the profile \'default\'' in answer()
    monkeypatch.setenv(place.PROFILE_VARIABLE, 'prod')
    assert '127.0.0.1:3 is that of the profile \'prod\'' in answer()
    monkeypatch.setenv(place.SERVER_VARIABLE, '127.0.0.1:5')
    assert '127.0.0.1:5 is the value of KBROKER_BOOTSTRAP_SERVER' in answer()
    assert '127.0.0.1:3 is that of the profile' in answer('--profile', 'prod')
    given = answer('--bootstrap-server', NOBODY)
    assert NOBODY in given and given.count('127.0') == 1


def test_without_any_source_the_broker_is_on_this_machine(home):
    (home / 'profiles.toml').unlink()
    assert place.find(None, {'XDG_CONFIG_HOME': str(home.parent)}) == (None, '', None)
    done = run_in_process('topics', '--list')
    if done.returncode:
        assert '127.0.0.1:9092 is the default, because neither --bootstrap-server nor KBROKER_BOOT' in done.stderr


def test_the_file_of_client_settings_may_name_the_broker(home):
    assert f'127.0.0.1:4 is bootstrap.servers in {home / "other.properties"}' in answer('--profile', 'other')
    assert '127.0.0.1:4 is bootstrap.servers in' in answer('--command-config', home / 'other.properties', '--profile',
                                                           'other')


def test_the_settings_of_the_default_profile_stay_with_its_broker(home):
    (home / 'profiles.toml').write_text(PROFILES.replace('"127.0.0.1:2"', '"a:1"\ncommand-config = "prod.properties"'))
    variables = {'XDG_CONFIG_HOME': str(home.parent)}
    assert place.find(None, variables)[2] == home / 'prod.properties'
    assert place.find(None, variables, is_server_given=True)[2] is None
    assert place.find('prod', variables, is_server_given=True)[2] == home / 'prod.properties'
    both = variables | {place.CONFIG_VARIABLE: str(home / 'other.properties')}
    assert place.find(None, both, is_server_given=True)[2] == home / 'other.properties'


def test_a_directory_needs_no_broker(home, monkeypatch, tmp_path):
    monkeypatch.setenv(place.SERVER_VARIABLE, NOBODY)
    monkeypatch.setenv(place.PROFILE_VARIABLE, 'missing')
    assert str(tmp_path) in answer('--data-dir', tmp_path)


def test_options_of_a_group_win_over_variables(home, monkeypatch, tmp_path):
    monkeypatch.setenv(place.SERVER_VARIABLE, '127.0.0.1:5')
    assert '127.0.0.1:5 is the value' in run_in_process('transactions', 'list').stderr
    done = run_in_process('transactions', '--bootstrap-server', NOBODY, 'list')
    assert NOBODY in done.stderr and done.stderr.count('127.0') == 1
    assert '127.0.0.1:3 is' in run_in_process('transactions', '--profile', 'prod', 'list').stderr
    assert str(tmp_path) in run_in_process('transactions', '--data-dir', tmp_path, 'list').stderr


@pytest.mark.parametrize('command', [('produce', '--topic', 'a'), ('consume', '--topic', 'a'),
                                     ('share-consume', '--topic', 'a'), ('groups', '--list'), ('acls', '--list'),
                                     ('features', 'describe'), ('configs', '--describe', '--topic', 'a'),
                                     ('txn-state',)])
def test_every_command_knows_the_profiles(home, command):
    done = run_in_process(*command, '--profile', 'nobody')
    assert done.returncode == 1
    assert f"{home / 'profiles.toml'}: found no profile 'nobody' in it, expected a table [nobody]" in done.stderr


@pytest.mark.parametrize(('text', 'words'), [
    ('[prod\n', 'found no TOML'), ('prod = 1\n', 'found prod outside of a table'),
    ('[prod]\npassword = "x"\n', "found 'password', expected bootstrap-server and command-config"),
    ('[prod]\nbootstrap-server = 9092\n', 'found bootstrap-server = 9092, expected a text'),
    ('[prod]\ncommand-config = "gone"\n', 'gone: found no file'), ('[prode]\n', 'did you mean prode?')])
def test_a_wrong_profile_is_one_line(home, text, words):
    (home / 'profiles.toml').write_text(text)
    done = run_in_process('topics', '--list', '--profile', 'prod')
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (1, '', 1)
    assert words in done.stderr


def test_a_missing_profile_file_is_named(home):
    (home / 'profiles.toml').unlink()
    with pytest.raises(ToolError, match=r'profiles.toml: found no such file, expected a table \[prod\]'):
        place.read_profile('prod', {'XDG_CONFIG_HOME': str(home.parent)})


def test_secrets_that_other_users_may_read_get_a_warning(home):
    for parent in home.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    (home / 'prod.properties').write_text('sasl.password=x\n')
    (home / 'prod.properties').chmod(0o644)
    done = run_in_process('topics', '--list', '--profile', 'prod')
    assert f'{home / "prod.properties"}: every user of this machine may read the passwords in it' in done.stderr
    (home / 'prod.properties').chmod(0o600)
    assert 'may read' not in run_in_process('topics', '--list', '--profile', 'prod').stderr


def test_a_profile_reaches_a_broker(home, shared_broker):
    (home / 'profiles.toml').write_text(f'[default]\nbootstrap-server = "{shared_broker.address}"\n')
    assert run_command('topics', '--create', '--topic', 'by-profile').returncode == 0
    assert 'by-profile' in run_command('topics', '--list').stdout.splitlines()


def test_the_example_of_the_page_has_two_profiles(home):
    example, = blocks('docs/commands.md', 'toml')
    (home / 'profiles.toml').write_text(example)
    variables = {'XDG_CONFIG_HOME': str(home.parent)}
    assert place.find(None, variables)[0] == 'localhost:9092'
    assert place.find('prod', variables)[::2] == ('kafka-1:9093,kafka-2:9093', home / 'prod.properties')
