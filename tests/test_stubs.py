"""Every Cython module that Python imports has a stub with its names, members and parameters."""

import ast
import importlib
import inspect
import pathlib
import types
from collections.abc import Callable, Mapping
from struct import Struct

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = sorted(source for package in ('kbroker', 'kbroker_tools') for source in (ROOT / package).rglob('*.pyx'))
HAS_NO_STUB = 'a module of cdef functions alone has nothing that Python sees'


def module_of(source: pathlib.Path) -> types.ModuleType:
    return importlib.import_module('.'.join(source.relative_to(ROOT).with_suffix('').parts))


def is_own(module: types.ModuleType, value: object) -> bool:
    """Return True if the module defines the value. A value that names no module, and a Struct, count as constants of
    the module.
    """
    if isinstance(value, types.ModuleType):
        return False
    return isinstance(value, Struct) or getattr(value, '__module__', module.__name__) == module.__name__


def public(names: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in names.items() if not name.startswith('_')}


def compiled_names(module: types.ModuleType) -> dict[str, object]:
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(python_imports(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {
        name: value for name, value in public(vars(module)).items() if name not in imported and is_own(module, value)
    }


def python_imports(module: types.ModuleType) -> str:
    """Return the `from ... import` statements of a .pyx, which cannot be parsed as Python."""
    source = (ROOT / module.__name__.replace('.', '/')).with_suffix('.pyx').read_text()
    statements, open_statement = [], ''
    for line in source.splitlines():
        if open_statement or (line.startswith('from ') and ' import ' in line):
            open_statement += line.split('#')[0] + '\n'
            if open_statement.count('(') == open_statement.count(')'):
                statements.append(open_statement)
                open_statement = ''
    return ''.join(statements)


def stub_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
        elif isinstance(node, ast.Assign):
            names.update((target.id, node) for target in node.targets if isinstance(target, ast.Name))
    return {name: node for name, node in names.items() if not name.startswith('_')}


def stub_of(source: pathlib.Path) -> dict[str, ast.stmt]:
    """Return {name: statement} of a stub, except plain assignments: they define type variables and aliases that only
    the stub uses.
    """
    names = stub_names(ast.parse(source.with_suffix('.pyi').read_text()).body)
    return {name: node for name, node in names.items() if not isinstance(node, ast.Assign)}


def parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return [name for name in names if name != 'self']


def compiled_parameters(function: Callable) -> list[str] | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    named = (
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
    return [parameter.name for parameter in named if parameter.name != 'self']


def assert_same_class(compiled: type, stub: ast.ClassDef) -> None:
    expected, found = stub_names(stub.body), public(vars(compiled))
    attributes = (
        {name for name, node in expected.items() if isinstance(node, ast.AnnAssign)}
        if compiled.__dictoffset__
        else set()
    )
    assert set(expected) - attributes == set(found) - attributes, compiled.__name__
    for name, node in expected.items():
        is_method = isinstance(node, ast.FunctionDef) and not node.decorator_list
        if is_method and (parts := compiled_parameters(found[name])) is not None:
            assert parts == parameters(node), f'{compiled.__name__}.{name}'


@pytest.mark.parametrize('source', SOURCES, ids=lambda source: str(source.relative_to(ROOT)))
def test_a_stub_says_what_the_module_holds(source):
    module = module_of(source)
    found = compiled_names(module)
    if not found:
        pytest.skip(HAS_NO_STUB)
    assert source.with_suffix('.pyi').exists(), f'{source.name} has no stub, which would hold {sorted(found)}'
    expected = stub_of(source)
    assert set(expected) == set(found)
    for name, node in expected.items():
        value = found[name]
        if isinstance(node, ast.ClassDef):
            assert_same_class(value, node)
        elif isinstance(node, ast.FunctionDef) and (parts := compiled_parameters(value)) is not None:
            assert parts == parameters(node), name


def test_every_stub_belongs_to_a_module():
    stubs = {path.with_suffix('') for path in (ROOT / 'kbroker').rglob('*.pyi')}
    assert stubs <= {source.with_suffix('') for source in SOURCES}
