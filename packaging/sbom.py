"""Writes the software bill of materials (SBOM) of the wheel in dist/, in CycloneDX's JSON: `make sbom`.

    python packaging/sbom.py DIST DIRECTORY    writes DIRECTORY/kbroker-VERSION.cdx.json

It lists the packages that `pip install kbroker` brings, as the package index resolves them now. It needs the programs
of build/packaging.
"""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
PROGRAMS = pathlib.Path(sys.executable).parent
SCHEMA = '1.6'


def wheel_of(directory: pathlib.Path) -> pathlib.Path:
    """Return the wheel in a directory that this Python can install."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    rank = {tag: number for number, tag in enumerate(sys_tags())}
    wheels = {path: min((rank[tag] for tag in parse_wheel_filename(path.name)[3] if tag in rank), default=None)
              for path in directory.glob('*.whl')}
    found = [(number, path) for path, number in wheels.items() if number is not None]
    if not found:
        sys.exit(f'{directory}: found no wheel for {sys.executable} among {len(wheels)} wheels, expected one: '
                 f'make package')
    return min(found)[1]


def described(wheel: pathlib.Path, directory: pathlib.Path) -> dict[str, Any]:
    """Install a wheel into an environment below `directory`, and return the SBOM of the environment."""
    environment = directory / 'environment'
    python = environment / 'bin' / 'python'
    for command in (['venv', '--python', sys.executable, str(environment)],
                    ['pip', 'install', '--python', str(python), str(wheel)]):
        subprocess.run([PROGRAMS / 'uv', '--quiet', *command], check=True)
    done = subprocess.run([PROGRAMS / 'cyclonedx-py', 'environment', '--pyproject', str(ROOT / 'pyproject.toml'),
                           '--spec-version', SCHEMA, '--output-reproducible', str(python)], check=True,
                          stdout=subprocess.PIPE, text=True)
    bom = json.loads(done.stdout)
    assert isinstance(bom, dict)
    return bom


def with_version(bom: dict[str, Any], version: str) -> dict[str, Any]:
    """Add the version of kbroker, which cyclonedx-py does not find, because pyproject.toml declares it as dynamic."""
    component = bom['metadata']['component']
    component['version'] = version
    component['purl'] = f'pkg:pypi/{component["name"]}@{version}'
    return bom


def faults(text: str) -> str | None:
    """Return why CycloneDX's schema refuses a SBOM, or None."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    fault = JsonStrictValidator(SchemaVersion.from_version(SCHEMA)).validate_str(text)
    return None if fault is None else str(fault)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit('Usage: python packaging/sbom.py DIST DIRECTORY')
    wheel, to = wheel_of(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
    version = wheel.name.split('-')[1]
    with tempfile.TemporaryDirectory() as directory:
        bom = with_version(described(wheel, pathlib.Path(directory)), version)
    text = json.dumps(bom, indent=2, sort_keys=True) + '\n'
    if (fault := faults(text)) is not None:
        sys.exit(f'the SBOM of {wheel}: the schema of CycloneDX {SCHEMA} refuses it: {fault}')
    to.mkdir(parents=True, exist_ok=True)
    file = to / f'kbroker-{version}.cdx.json'
    file.write_text(text)
    packages = [f'{each["name"]} {each["version"]}' for each in bom['components']]
    print(f'{file}: kbroker {version} needs {", ".join(packages)}')


if __name__ == '__main__':
    main()
