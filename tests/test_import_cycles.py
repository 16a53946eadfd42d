"""No module imports itself through other modules. Imports in functions count like imports at module level."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent

IMPORT = re.compile(r'^[ \t]*(?:from[ ]+(kbroker[\w.]*)[ ]+c?import[ ]+(\([^)]*\)|.*)|c?import[ ]+(kbroker[\w.]*))',
                    re.MULTILINE)
FOR_TYPES_ONLY = re.compile(r'^if TYPE_CHECKING:\n(?:(?: {4}.*)?\n)+', re.MULTILINE)
NOT_NAMES = re.compile(r'\bas\s+\w+|#.*')


def module_of(path: pathlib.Path) -> str:
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


def imports_of(source: str, modules: set[str]) -> set[str]:
    """Return those of `modules` that a source file imports at run time."""
    found = set()
    for package, names, module in IMPORT.findall(FOR_TYPES_ONLY.sub('', source)):
        if module:
            found.add(module)
        for name in re.findall(r'\w+', NOT_NAMES.sub('', names)):
            found.add(f'{package}.{name}' if f'{package}.{name}' in modules else package)
    return found & modules


def import_graph(package: str) -> dict[str, set[str]]:
    paths = [path for path in (ROOT / package).rglob('*') if path.suffix in {'.py', '.pyx', '.pxd'}]
    modules = {module_of(path) for path in paths}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for path in paths:
        graph[module_of(path)] |= imports_of(path.read_text(), modules) - {module_of(path)}
    return graph


def modules_in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that remain after repeatedly removing those that import no remaining module."""
    left = dict(graph)
    while leaves := [module for module, imports in left.items() if not imports & left.keys()]:
        for module in leaves:
            del left[module]
    return set(left)


@pytest.mark.parametrize('package', ['kbroker', 'kbroker_tools'])
def test_imports_form_no_cycle(package):
    graph = import_graph(package)
    assert sum(map(len, graph.values())) > 100
    assert modules_in_cycles(graph) == set()


def test_the_folders_of_groups_form_no_cycle():
    """Each folder of kbroker/group counts as one module, and each file that is in no folder counts as one module."""
    room = 'kbroker.group.'
    folders: dict[str, set[str]] = {}
    for module, imports in import_graph('kbroker').items():
        if module.startswith(room):
            found = folders.setdefault(module.removeprefix(room).partition('.')[0], set())
            found |= {each.removeprefix(room).partition('.')[0] for each in imports if each.startswith(room)}
    assert len(folders) > 10
    assert modules_in_cycles({folder: imports - {folder} for folder, imports in folders.items()}) == set()


def test_a_cycle_through_a_function_is_seen():
    modules = {'kbroker.a', 'kbroker.b'}
    graph = {'kbroker.a': imports_of('from kbroker.b import (\n    one,  # first\n    two,\n)\n', modules),
             'kbroker.b': imports_of('def late():\n    from kbroker import a as lazily\n', modules)}
    assert modules_in_cycles(graph) == modules


def test_an_import_for_types_is_no_import():
    assert imports_of('if TYPE_CHECKING:\n    from kbroker.b import B\n\nimport json\n', {'kbroker.b'}) == set()
