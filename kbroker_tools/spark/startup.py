"""The start of the data source in a Spark driver. It makes `format("kbroker")` work without an activated virtual
environment.

Spark starts its Python workers with the command in `PYSPARK_PYTHON`, or with the first `python3` in PATH. If the Python
of a virtual environment runs the program, its workers may run another Python, in which kbroker is not installed.
`kbroker_spark.pth` imports this module when Python starts. It adds a finder, which wraps functions of four PySpark
modules when a program imports them:

* `launch_gateway` starts the JVM. Before it does, PYSPARK_PYTHON is set to the Python of the program, unless a setting
  names another or a remote cluster runs the tasks. `SparkContext` may have the name of that cluster as an argument.
* `format` of readers and writers. If Spark did not find kbroker, the source is registered with the workers' Python, or
  an error names the setting to change.

Every Python of the environment imports this module, so it imports little itself.
"""
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

SOURCE = 'kbroker'
PYTHON_SETTINGS = ('spark.pyspark.python', 'spark.pyspark.driver.python')
MASTER_SETTING = 'spark.master'
ARGUMENTS: dict[str, str] = {}
"""The name of a setting for the master that the program passed to `SparkContext` as an argument."""


class Loader:
    """The loader of a module. After the module is loaded, it calls a function with the module."""

    def __init__(self, loader: Any, after: Callable[[ModuleType], None]):
        self._loader = loader
        self._after = after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after(module)


class Finder:
    """A finder on `sys.meta_path` that wraps functions of some PySpark modules. It ignores all other modules."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        wrap = WRAPPED.get(name)
        if wrap is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, wrap)  # type: ignore[assignment]
                return spec
        return None


def wrap_launch(module: Any) -> None:
    """Wrap `launch_gateway`, which starts Spark's JVM."""
    from functools import wraps
    launch = module.launch_gateway

    @wraps(launch)
    def launch_gateway(conf: Any = None, *others: Any, **named: Any) -> Any:
        choose_python({**(dict(conf.getAll()) if conf is not None else {}), **ARGUMENTS})
        return launch(conf, *others, **named)

    module.launch_gateway = launch_gateway


def wrap_context(module: Any) -> None:
    """Make `SparkContext` store its argument `master`, because `launch_gateway` does not receive it.

    Spark shows the user which code called `__init__`, so `__init__` must not be wrapped. `__new__` runs before it and
    is wrapped.
    """
    def __new__(cls: Any, master: Any = None, *_others: Any, **_named: Any) -> Any:
        ARGUMENTS.clear()
        if isinstance(master, str):
            ARGUMENTS[MASTER_SETTING] = master
        return object.__new__(cls)

    module.SparkContext.__new__ = staticmethod(__new__)


def wrap_formats(module: Any) -> None:
    """Wrap the method `format` of the readers and writers in the module."""
    for name in ('DataFrameReader', 'DataFrameWriter', 'DataStreamReader', 'DataStreamWriter'):
        if name in vars(module):
            _wrap_format(vars(module)[name])


def _wrap_format(kind: Any) -> None:
    from functools import wraps
    original = kind.format

    @wraps(original)
    def format(self: Any, source: str) -> Any:
        if isinstance(source, str) and source.lower() == SOURCE:
            ensure_source(self._spark)
        return original(self, source)

    kind.format = format


def choose_python(conf: dict[str, str]) -> None:
    """Set PYSPARK_PYTHON to the Python of this program, and print a line about it, if the workers would otherwise run
    another Python.

    PYSPARK_PYTHON does not change if a setting names a Python, if the JVM is already running, or if the tasks run on
    other machines.
    """
    if os.environ.get('PYSPARK_PYTHON') or 'PYSPARK_GATEWAY_PORT' in os.environ or not sys.executable:
        return
    given = list(settings(conf))
    if any(name in PYTHON_SETTINGS for name, _ in given):
        return
    if any(name == MASTER_SETTING and not value.startswith('local') for name, value in given):
        return
    if not is_this_python('python3'):
        os.environ['PYSPARK_PYTHON'] = sys.executable
        print(f"kbroker: Spark's Python workers run {sys.executable}, as this program does; set PYSPARK_PYTHON to run "
              'another', file=sys.stderr)


def settings(conf: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the (name, value) pairs of Spark settings. They come from the program, from PYSPARK_SUBMIT_ARGS and MASTER,
    and from Spark's file of defaults."""
    import shlex
    yield from conf.items()
    if 'MASTER' in os.environ:
        yield MASTER_SETTING, os.environ['MASTER']
    try:
        arguments = shlex.split(os.environ.get('PYSPARK_SUBMIT_ARGS', ''))
    except ValueError:
        arguments = []  # spark-submit reports wrong arguments
    files = [default_file()]
    flag = ''
    for argument in arguments:
        value = argument
        if argument.startswith('--') and '=' in argument:
            flag, _, value = argument.partition('=')
        if flag == '--master':
            yield MASTER_SETTING, value
        elif flag in ('--conf', '-c'):
            name, _, value = value.partition('=')
            yield name.strip(), value.strip()
        elif flag == '--properties-file':
            files.append(value)
        flag = argument
    for file in files:
        yield from properties_of(file)


def default_file() -> str:
    """Return the path of Spark's file of defaults. The file may not exist."""
    directory = os.environ.get('SPARK_CONF_DIR')
    if directory is None:
        from importlib.util import find_spec
        spec = find_spec('pyspark')
        package = os.path.dirname(spec.origin) if spec is not None and spec.origin is not None else ''
        directory = os.path.join(os.environ.get('SPARK_HOME', package), 'conf')
    return os.path.join(directory, 'spark-defaults.conf')


def properties_of(file: str) -> Iterator[tuple[str, str]]:
    """Yield the (name, value) pairs in a properties file. Yield nothing if the file cannot be read."""
    import re
    try:
        with open(file, encoding='utf-8', errors='replace') as opened:
            lines = opened.readlines()
    except OSError:
        return
    for line in lines:
        match = re.fullmatch(r'\s*([^\s=:#!][^\s=:]*)\s*[\s=:]\s*(.*?)\s*', line)
        if match is not None:
            yield match[1], match[2]


def is_this_python(command: str) -> bool:
    """Return whether a command, given as a path or a name in PATH, runs the same Python and environment as this
    program."""
    from shutil import which
    found = which(command)
    if found is None:
        return False
    return (os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
            and os.path.realpath(found) == os.path.realpath(sys.executable))


def ensure_source(session: Any) -> None:
    """Register the data source if Spark has not found it. Raise PySparkRuntimeError if the Python of the workers lacks
    kbroker."""
    if session._jsparkSession.sessionState().dataSourceManager().dataSourceExists(SOURCE):
        return
    python = session.sparkContext.pythonExec
    if not is_this_python(python):
        from shutil import which

        from pyspark.errors import PySparkRuntimeError
        raise PySparkRuntimeError(
            f"Spark's Python workers run {which(python) or python}, which has no kbroker; set PYSPARK_PYTHON="
            f'{sys.executable} in the environment before the program starts, or install kbroker[spark] there')
    from kbroker_tools.spark import KafkaLogDataSource
    session.dataSource.register(KafkaLogDataSource)


WRAPPED: dict[str, Callable[[Any], None]] = {
    'pyspark.java_gateway': wrap_launch,
    'pyspark.core.context': wrap_context,
    'pyspark.sql.readwriter': wrap_formats,
    'pyspark.sql.streaming.readwriter': wrap_formats,
}
"""Maps the names of PySpark modules to the functions that are called with them after they are loaded."""


def install() -> None:
    """Add the finder to `sys.meta_path`, once per process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
