"""The README of a package. A package index shows it without the repository, so its links lead to the repository."""
import pathlib
import re
import runpy
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
CODE = re.compile(r'^(```.*?^```\n)', re.MULTILINE | re.DOTALL)
LINK = re.compile(r'(!?\[[^][]*\])\((?!\w+:|#)([^)\s]+)\)')


def text():
    """Return README.md, in which each link to a file of the repository is the address of this file at the version."""
    readme = (ROOT / 'README.md').read_text()
    source = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['urls']['Source']
    version = runpy.run_path(str(ROOT / 'kbroker' / '__init__.py'))['__version__']

    def with_address(link):
        name, target = link.groups()
        return f'{name}({source}/{"raw" if name.startswith("!") else "blob"}/v{version}/{target})'

    parts = CODE.split(readme)
    return ''.join(part if part.startswith('```') else LINK.sub(with_address, part) for part in parts)
