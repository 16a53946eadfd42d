"""Shell completion, installed by `make install-service`, works in the shells themselves."""
import os
import subprocess

import pytest
from support.runner.command_runner import ROOT, SCRIPTS, install_programs

LINES = {
    'bash': '''source {file}
COMP_WORDS=({command} {word}); COMP_CWORD=1
_{function}_completion {command} {word} {command}
printf '%s\\n' "${{COMPREPLY[@]}}"''',
    # Without a terminal, zsh has no completion system. The functions defined here print their arguments instead.
    'zsh': '''fpath=({directory}); autoload -U _{command}
compdef() {{ }}; compadd() {{ }}; _describe() {{ print -l -- "${{(@P)3%%:*}}" }}
words=({command} {word}); CURRENT=2; _{command}''',
    'fish': '''source {file}
complete -C '{command} {word}' ''',
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


@pytest.mark.parametrize('command', sorted(SCRIPTS))
@pytest.mark.parametrize('shell', ['bash', pytest.param('fish', marks=pytest.mark.fish),
                                   pytest.param('zsh', marks=pytest.mark.zsh)])
def test_a_shell_completes_an_option(installed, shell, command):
    file = installed / 'usr/local/share' / FILES[shell].format(command)
    program = LINES[shell].format(file=file, directory=file.parent, command=command, word='--ver',
                                  function=command.replace('-', '_'))
    done = subprocess.run([shell, '-c', program], capture_output=True, text=True, timeout=180, check=False,
                          env=os.environ | {'PATH': f'{installed / "bin"}:{os.environ["PATH"]}',
                                            'HOME': str(installed)})
    assert '--version' in [line.partition('\t')[0] for line in done.stdout.splitlines()], done
