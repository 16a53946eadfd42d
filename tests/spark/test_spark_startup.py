"""A program that a virtual environment's Python runs without activation: its Spark workers run the same Python."""
import os
import pathlib
import subprocess
import sys
import types
import venv

import pytest
from spark_rows import LogFiles
from support.brokers.broker_process import ROOT

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.errors import ClientError
from kbroker_tools.spark import startup as spark_startup
from kbroker_tools.spark.messages import (
    HIDE_TRACEBACK,
    ColumnError,
    MissingPackageError,
    message_first,
    require_arrow,
    require_streams,
)

AUTOLOAD = ROOT / 'kbroker_tools/spark/autoload'
PROGRAM = '''
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')
         .config('spark.driver.extraJavaOptions', '-XX:+UseSerialGC -XX:TieredStopAtLevel=1').getOrCreate())
source = spark.read.format('kbroker').option('path', sys.argv[1])
print(len(source.load().collect()), 'rows')
try:
    source.option('splitByte', '1m').load()
except Exception as error:
    print(str(error).splitlines()[0])
'''


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Remove Spark's settings, and put a different Python as `python3` first on PATH. Return the `bin` directory of the
    virtual environment."""
    for name in ('PYSPARK_PYTHON', 'PYSPARK_DRIVER_PYTHON', 'PYSPARK_GATEWAY_PORT', 'PYSPARK_SUBMIT_ARGS', 'MASTER',
                 'SPARK_HOME'):
        monkeypatch.delenv(name, raising=False)
    other = tmp_path / 'other'
    other.mkdir()
    (other / 'python3').symlink_to(sys.executable)
    monkeypatch.setenv('PATH', str(other))
    monkeypatch.setenv('SPARK_CONF_DIR', str(tmp_path))
    return other


@pytest.mark.jvm
@pytest.mark.timeout(600)
def test_a_program_of_an_environment_that_is_not_activated_reads_without_a_setting(tmp_path):
    log = LogFiles(tmp_path / 'logs')
    log.write('a', 'b')
    log.flush()
    directory = tmp_path / 'venv'
    venv.create(directory, symlinks=True, with_pip=False)
    packages = next(directory.glob('lib/python3*/site-packages'))
    installed = next(path for path in sys.path if (pathlib.Path(path) / 'pyspark').is_dir())
    (packages / 'a.pth').write_text(f'{installed}\n{ROOT}\n{AUTOLOAD}\n')
    (packages / 'kbroker_spark.pth').symlink_to(AUTOLOAD / 'kbroker_spark.pth')
    program = tmp_path / 'program.py'
    program.write_text(PROGRAM)
    left_out = ('PYSPARK_PYTHON', 'PYSPARK_DRIVER_PYTHON', 'PYSPARK_GATEWAY_PORT', 'PYTHONPATH', 'VIRTUAL_ENV')
    variables = {name: text for name, text in os.environ.items() if name not in left_out}
    path = os.pathsep.join(each for each in os.environ['PATH'].split(os.pathsep)
                           if each != os.path.dirname(sys.executable))
    done = subprocess.run([directory / 'bin/python', program, tmp_path / 'logs'], capture_output=True, text=True,
                          cwd=tmp_path, timeout=500, check=False,
                          env=variables | {'PATH': path, 'SPARK_LOCAL_IP': '127.0.0.1'})
    assert done.stdout.splitlines() == [
        '2 rows', '[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: '
        'kbroker_tools.spark.options.OptionError: option splitbyte: no such option, did you mean splitBytes?'], done
    assert [line for line in done.stderr.splitlines() if line.startswith('kbroker')] == [
        f"kbroker: Spark's Python workers run {directory}/bin/python, as this program does; set PYSPARK_PYTHON to run "
        'another']


def test_the_installed_packages_have_the_startup_file_beside_them(tmp_path):
    subprocess.run([sys.executable, 'setup.py', '-q', 'build_py', '--build-lib', tmp_path], cwd=ROOT, check=True,
                   capture_output=True, timeout=180)
    assert (tmp_path / 'kbroker_spark.pth').read_text() == (AUTOLOAD / 'kbroker_spark.pth').read_text()
    assert (tmp_path / 'kbroker_tools/spark/startup.py').exists()


@pytest.mark.parametrize('conf', [{}, {'spark.master': 'local[4]'}, {'spark.master': 'local-cluster[2,1,1024]'}])
def test_the_workers_of_a_local_session_become_the_program_s_python(environment, capsys, conf):
    spark_startup.choose_python(conf)
    assert os.environ['PYSPARK_PYTHON'] == sys.executable
    assert capsys.readouterr().err.count('\n') == 1


@pytest.mark.parametrize(('conf', 'variables', 'defaults'), [
    ({'spark.master': 'spark://host:7077'}, {}, ''),
    ({'spark.pyspark.python': '/usr/bin/python3'}, {}, ''),
    ({}, {'PYSPARK_GATEWAY_PORT': '1'}, ''),
    ({}, {'MASTER': 'yarn'}, ''),
    ({}, {'PYSPARK_SUBMIT_ARGS': '--master yarn pyspark-shell'}, ''),
    ({}, {'PYSPARK_SUBMIT_ARGS': '--master=yarn pyspark-shell'}, ''),
    ({}, {'PYSPARK_SUBMIT_ARGS': '--conf spark.master=yarn pyspark-shell'}, ''),
    ({}, {'PYSPARK_SUBMIT_ARGS': '--conf=spark.pyspark.driver.python=x pyspark-shell'}, ''),
    ({}, {}, '# a comment\nspark.master   yarn\n'),
    ({}, {}, 'spark.pyspark.python=/opt/python\n'),
])
def test_a_chosen_python_a_remote_cluster_and_a_running_jvm_are_left_alone(environment, monkeypatch, capsys, tmp_path,
                                                                        conf, variables, defaults):
    (tmp_path / 'spark-defaults.conf').write_text(defaults)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    spark_startup.choose_python(conf)
    assert 'PYSPARK_PYTHON' not in os.environ and capsys.readouterr().err == ''


@pytest.mark.parametrize(('arguments', 'chosen'), [
    (('spark://host:7077',), None), ((), sys.executable), (('local[2]',), sys.executable)])
def test_the_master_that_a_context_gets_as_an_argument_counts(environment, monkeypatch, arguments, chosen):
    module = types.SimpleNamespace(launch_gateway=lambda conf: None)

    class SparkContext:
        def __init__(self, master=None):
            module.launch_gateway(None)

    module.SparkContext = SparkContext
    monkeypatch.setattr(spark_startup, 'ARGUMENTS', {'spark.master': 'of the context before'})
    spark_startup.wrap_launch(module)
    spark_startup.wrap_context(module)
    assert isinstance(module.SparkContext(*arguments), SparkContext)
    assert os.environ.get('PYSPARK_PYTHON') == chosen


def test_pyspark_python_is_left_as_the_user_set_it(environment, monkeypatch, capsys):
    monkeypatch.setenv('PYSPARK_PYTHON', '/opt/python')
    spark_startup.choose_python({})
    assert os.environ['PYSPARK_PYTHON'] == '/opt/python' and capsys.readouterr().err == ''


def test_a_file_of_settings_on_the_command_line_is_read_too(environment, monkeypatch, tmp_path):
    file = tmp_path / 'mine.conf'
    file.write_text('spark.master: k8s://host\n!spark.x y\n')
    monkeypatch.setenv('PYSPARK_SUBMIT_ARGS', f'--properties-file {file} pyspark-shell')
    assert ('spark.master', 'k8s://host') in list(spark_startup.settings({}))


def test_nothing_is_set_or_printed_in_an_activated_environment(environment, monkeypatch, capsys):
    python = environment / 'python'
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, 'executable', str(python))
    spark_startup.choose_python({})
    assert 'PYSPARK_PYTHON' not in os.environ and capsys.readouterr().err == ''


def test_only_the_named_modules_are_wrapped_and_keep_their_loaders(tmp_path, monkeypatch):
    (tmp_path / 'wrapped_here.py').write_text('x = 1\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(spark_startup.WRAPPED, 'wrapped_here', lambda module: vars(module).update(x=2))
    finder = spark_startup.Finder()
    monkeypatch.setattr(sys, 'meta_path', [finder, *sys.meta_path])
    import wrapped_here
    assert wrapped_here.x == 2
    assert type(wrapped_here.__loader__).__name__ == 'SourceFileLoader' and wrapped_here.__loader__.get_source(
        'wrapped_here') == 'x = 1\n'
    assert finder.find_spec('json') is None
    monkeypatch.delitem(sys.modules, 'wrapped_here')


def test_python_imports_nothing_of_spark_at_its_start():
    program = ('import sys, kbroker_tools.spark.startup as startup; startup.install(); startup.install(); '
               'print(sum(type(each) is startup.Finder for each in sys.meta_path), '
               '[name for name in sys.modules if "spark" in name])')
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=True,
                          timeout=180)
    assert done.stdout == "1 ['kbroker_tools.spark', 'kbroker_tools.spark.startup']\n"


@pytest.mark.parametrize(('variable', 'hidden'), [('PYTHON_WORKER_FACTORY_PORT', '1'), ('X', None)])
def test_only_a_worker_leaves_out_the_traceback_of_an_error_that_the_user_corrects(monkeypatch, variable, hidden):
    for name in [name for name in os.environ if name.startswith('PYTHON_WORKER_FACTORY_')]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(HIDE_TRACEBACK, '')
    monkeypatch.setenv(variable, '1')
    with pytest.raises(KeyError), message_first():
        raise KeyError
    assert os.environ[HIDE_TRACEBACK] == ''
    for error in (ColumnError(), ClientError('refused'), KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 'no')):
        monkeypatch.setenv(HIDE_TRACEBACK, '')
        with pytest.raises(type(error)), message_first():
            raise error
        assert os.environ[HIDE_TRACEBACK] == (hidden or '')
    with pytest.raises(KeyError), message_first(KeyError):
        raise KeyError
    assert os.environ[HIDE_TRACEBACK] == (hidden or '')


def test_a_python_without_pyarrow_is_named_with_the_command_that_installs_it(monkeypatch):
    require_arrow()
    monkeypatch.setattr('kbroker_tools.spark.messages.find_spec', lambda name: None)
    with pytest.raises(MissingPackageError, match=rf"no pyarrow; install it with: {sys.executable} -m pip install"):
        require_arrow()


def test_a_stream_on_a_pyspark_that_is_too_old_names_the_versions(monkeypatch):
    """PySpark 4.1 has no module of read limits, and its ImportError named only that module."""
    require_streams()
    monkeypatch.setattr('kbroker_tools.spark.messages.find_spec', lambda name: None)
    with pytest.raises(MissingPackageError, match=r'found PySpark 4\.\S+, expected 4\.2 or later, which streams need'):
        require_streams()


def test_the_settings_of_the_log_that_a_command_gives_to_spark_exist():
    """When the commands moved into a room of their own, the path to this file no longer led to it."""
    from kbroker_tools.spark.session import QUIET_LOG
    assert 'rootLogger.level' in QUIET_LOG.read_text()
