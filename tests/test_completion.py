"""Shell completion, installed by `make install-service`, works in the shells themselves."""
import os
import subprocess

import pytest
from support.runner.command_runner import ROOT, SCRIPTS, install_programs, run_command

LINES = {
    'bash': '''source {file}
COMP_WORDS=({command} {words}); COMP_CWORD={count}
_{function}_completion {command} x {command}
printf '%s\\n' "${{COMPREPLY[@]}}"''',
    # Without a terminal, zsh has no completion system. The functions defined here print their arguments instead.
    'zsh': '''fpath=({directory}); autoload -U _{command}
compdef() {{ }}; compadd() {{ print -l -- "${{(@P)@[-1]}}" }}; _describe() {{ print -l -- "${{(@P)3%%:*}}" }}
words=({command} {words}); CURRENT=$(({count} + 1)); _{command}''',
    'fish': '''source {file}
complete -C '{command} {words}' ''',
}
FILES = {'bash': 'bash-completion/completions/{}', 'zsh': 'zsh/site-functions/_{}',
         'fish': 'fish/vendor_completions.d/{}.fish'}


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """The installed completion files, and programs with the names of the commands."""
    directory = tmp_path_factory.mktemp('completion')
    install_programs(directory / 'bin')
    subprocess.run(['make', '--silent', 'install-service', f'DESTDIR={directory}'], cwd=ROOT, check=True,
                   capture_output=True)
    return directory


SHELLS = pytest.mark.parametrize('shell', ['bash', pytest.param('fish', marks=pytest.mark.fish),
                                           pytest.param('zsh', marks=pytest.mark.zsh)])


def completed(installed, shell, command, words, **variables):
    """Return what the shell suggests for the last of the words."""
    file = installed / 'usr/local/share' / FILES[shell].format(command)
    program = LINES[shell].format(file=file, directory=file.parent, command=command, words=' '.join(words),
                                  count=len(words), function=command.replace('-', '_'))
    done = subprocess.run([shell, '-c', program], capture_output=True, text=True, timeout=180, check=False,
                          env=os.environ | {'PATH': f'{installed / "bin"}:{os.environ["PATH"]}',
                                            'HOME': str(installed)} | variables)
    return [line.partition('\t')[0] for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize('command', sorted(SCRIPTS))
@SHELLS
def test_a_shell_completes_an_option(installed, shell, command):
    found, errors = completed(installed, shell, command, ['--ver'])
    assert '--version' in found, errors


@SHELLS
def test_a_shell_completes_a_topic_of_the_broker(installed, shell, shared_broker):
    at = {'KBROKER_BOOTSTRAP_SERVER': shared_broker.address}
    assert run_command('topics', '--bootstrap-server', shared_broker.address, '--create', '--topic',
                       'completed-topic', '--if-not-exists').returncode == 0
    assert completed(installed, shell, 'kbroker-consume', ['--topic', 'comple'], **at) == (['completed-topic'], '')
    assert completed(installed, shell, 'kbroker', ['consume', '--topic', 'comple'], **at) == (['completed-topic'], '')
    nobody = {'KBROKER_BOOTSTRAP_SERVER': '127.0.0.1:1'}
    assert completed(installed, shell, 'kbroker-consume', ['--topic', 'comple'], **nobody)[1] == ''
