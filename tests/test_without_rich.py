"""The broker needs neither rich nor the tools: an image may leave out both."""
import re
import signal
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT

REFUSING = '''
import sys
LEFT_OUT = {'kbroker_tools', 'markdown_it', 'mdurl', 'pygments', 'rich'}
class Refuse:
    def find_spec(self, name, path, target=None):
        if name.partition('.')[0] in LEFT_OUT:
            raise ModuleNotFoundError(f'{name} is left out', name=name)
sys.meta_path.insert(0, Refuse())
'''


def start(program, *arguments):
    return subprocess.Popen([sys.executable, '-c', REFUSING + program, *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_every_module_of_the_broker_and_of_the_client_imports_without_rich():
    process = start('import importlib, pkgutil, kbroker\n'
                    'for each in pkgutil.walk_packages(kbroker.__path__, "kbroker."):\n'
                    '    if not each.name.endswith(("__main__", ".plugin")):     # pytest imports its plugins\n'
                    '        importlib.import_module(each.name)\n'
                    'print(len([name for name in sys.modules if name.startswith("kbroker.")]) > 200)\n')
    assert process.communicate() == ('True\n', '') and process.returncode == 0


@pytest.mark.parametrize('arguments', [['--version'], ['--help'], ['serve', '--help'], ['status', '--help']])
def test_the_options_of_the_broker_are_printed_without_rich(arguments):
    process = start('from kbroker.daemon.main import main; main(prog_name="kbroker")', *arguments)
    printed, errors = process.communicate()
    assert (errors, process.returncode) == ('', 0) and 'kbroker' in printed


def test_a_broker_starts_and_stops_without_rich(tmp_path):
    with start('from kbroker.daemon.main import main; main()', 'serve', '--listen', '127.0.0.1:0', '--data-dir',
               str(tmp_path)) as broker:
        printed = ''
        for line in broker.stderr:
            printed += line
            if re.search(r'ready on ', line):
                broker.send_signal(signal.SIGTERM)
    assert broker.returncode == 0 and 'ready on ' in printed and 'Traceback' not in printed
