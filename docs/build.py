"""Build the pages into a site with mkdocs: `make docs`. A link that leads nowhere is an error.

Pages stay in the places where a code host shows them, so mkdocs receives a copy that keeps their paths.
"""
import pathlib
import shutil
import sys
import tempfile

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ('*.md', 'docs/*.md', 'docs/*.svg', 'docs/*.css', 'bench/*.md', 'bench/*.svg')


def copy_pages(to: pathlib.Path) -> None:
    """Copy all pages and their pictures to the directory `to`."""
    for pattern in PAGES:
        for page in ROOT.glob(pattern):
            copy = to / page.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, copy)


def build_site(site: pathlib.Path) -> None:
    """Build the site into the directory `site`. Raise mkdocs.exceptions.Abort if a page has a fault."""
    with tempfile.TemporaryDirectory() as pages:
        copy_pages(pathlib.Path(pages))
        build(load_config(str(ROOT / 'docs' / 'mkdocs.yml'), docs_dir=pages, site_dir=str(site), strict=True))


if __name__ == '__main__':
    build_site(pathlib.Path(sys.argv[1]).resolve())
