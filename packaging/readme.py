"""The README for a package index, where a link to a file of the repository needs the address of the repository."""
import pathlib
import re
import tomllib

LINK = re.compile(r"""(\]\(\s*<?|^\[[^\]]+\]:\s+<?|\b(?:src|href)=["'])([^)>\s"']+)""", re.MULTILINE)
"""What comes before a target, and the target: of a link or an image, of a link that a line defines, and in HTML."""
ELSEWHERE = re.compile(r'[a-z][a-z0-9+.-]*:|//|#')
"""The beginning of a target that is no file of the repository."""
IMAGE = re.compile(r'\.(?:png|svg|gif|jpe?g|webp)$')


def readme():
    """Return README.md with absolute links."""
    source = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']['urls']['Source']
    return with_absolute_links(pathlib.Path('README.md').read_text(), source)


def with_absolute_links(text, source):
    """Return `text` with its relative links leading to the repository `source`."""
    def absolute(found):
        before, target = found.groups()
        if ELSEWHERE.match(target):
            return found[0]
        return f'{before}{source}/{"raw" if IMAGE.search(target) else "blob"}/main/{target.removeprefix("./")}'
    return LINK.sub(absolute, text)
