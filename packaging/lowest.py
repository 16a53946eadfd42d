"""Prints the requirements of pyproject.toml, each pinned to its lowest version: `lz4>=4.3` as `lz4==4.3`."""
import pathlib
import tomllib

EXTRAS = ('oauth', 'spark', 'iceberg', 'delta', 'registry', 'test')


def main():
    read = tomllib.loads(pathlib.Path('pyproject.toml').read_text())
    project = read['project']
    requirements = [*read['dependency-groups']['build'], *project['dependencies']]
    for extra in EXTRAS:
        requirements += project['optional-dependencies'][extra]
    for each in dict.fromkeys(requirements):
        print(each.replace('>=', '=='))


if __name__ == '__main__':
    main()
