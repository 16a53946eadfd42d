"""The ends of commands: an exit code, and one line on failure."""
import click
import pytest
from click.testing import CliRunner

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker_tools.base.command import SETTINGS, Command, ToolError


@click.command(cls=Command, context_settings=SETTINGS)
@click.argument('how')
def ending(how):
    if how.isdecimal():
        click.get_current_context().exit(int(how))
    raise {'tool': ToolError('found 1, expected 2'), 'hostile': ToolError('no group a\x1b[31m\nb'),
           'usage': click.UsageError('give one of both'),
           'kafka': KafkaError(ErrorCode.NOT_CONTROLLER), 'file': FileNotFoundError(2, 'No such file', '/x'),
           'interrupt': KeyboardInterrupt()}[how]


@pytest.mark.parametrize(('how', 'code', 'line'), [
    ('0', 0, ''), ('1', 1, ''), ('7', 7, ''), ('tool', 1, 'kbroker-x: found 1, expected 2\n'),
    ('hostile', 1, 'kbroker-x: no group a\\x1b[31m b\n'),
    ('kafka', 1, f'kbroker-x: {ErrorCode.NOT_CONTROLLER.message}\n'), ('file', 1, 'kbroker-x: /x: No such file\n'),
    ('interrupt', 130, '')])
def test_a_command_ends_with_its_exit_code_and_one_line(how, code, line):
    done = CliRunner().invoke(ending, [how], prog_name='kbroker-x')
    assert (done.exit_code, done.stderr, done.stdout) == (code, line, '')


def test_wrong_usage_ends_with_2_and_says_how_to_get_help():
    done = CliRunner().invoke(ending, ['usage'], prog_name='kbroker-x')
    assert done.exit_code == 2 and "Try 'kbroker-x --help'" in done.stderr
