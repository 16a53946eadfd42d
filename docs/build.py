"""Build the pages into a site with mkdocs: `make docs`. A link that leads nowhere is an error.

    python docs/build.py DIRECTORY

Pages stay in the places where a code host shows them, so mkdocs receives a copy that keeps their paths. The man pages
become pages of the site. The site works from a directory as well as from a server, and loads nothing from elsewhere.
"""
import json
import lzma
import os
import pathlib
import runpy
import shutil
import sys
import tarfile
import tempfile
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ('*.md', 'docs/*.md', 'docs/*.svg', 'bench/*.md', 'bench/*.svg')
LIST_OF_TESTS = 'docs/tests.html'
ABOUT = 'About kbroker'
"""The last group of pages in mkdocs.yml. The search shows them after the pages for users."""

as_markdown = runpy.run_path(str(ROOT / 'docs' / 'manual.py'))['as_markdown']


def copy_pages(to: pathlib.Path) -> None:
    """Copy all pages and their pictures to the directory `to`, the man pages as Markdown."""
    for pattern in PAGES:
        for page in ROOT.glob(pattern):
            copy = to / page.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, copy)
    (to / 'man').mkdir()
    for page in (ROOT / 'man').glob('*.[158]'):
        (to / 'man' / f'{page.name}.md').write_text(as_markdown(page.read_text()))


def build_site(site: pathlib.Path) -> None:
    """Build the site into the directory `site`. Raise mkdocs.exceptions.Abort if a page has a fault."""
    version = runpy.run_path(str(ROOT / 'kbroker' / '__init__.py'))['__version__']
    with tempfile.TemporaryDirectory() as pages:
        copy_pages(pathlib.Path(pages))
        build(load_config(str(ROOT / 'docs' / 'mkdocs.yml'), docs_dir=pages, site_dir=str(site), strict=True,
                          extra={'version': version}))


def write_archive(archive: pathlib.Path) -> None:
    """Write the site as one archive, which an sdist and its wheel carry. Equal pages give an equal archive."""
    time_s = int(os.environ.get('SOURCE_DATE_EPOCH', '0'))
    with (tempfile.TemporaryDirectory() as directory,
          tarfile.open(archive, 'w:xz', preset=9 | lzma.PRESET_EXTREME) as written):
        site = pathlib.Path(directory)
        build_site(site)
        for path in sorted(path for path in site.rglob('*') if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(site)))
            member.size, member.mtime = path.stat().st_size, time_s
            with path.open('rb') as content:
                written.addfile(member, content)


# ---- mkdocs calls these functions, because mkdocs.yml names this file as its hooks

def on_page_content(html: str, **_: Any) -> str:
    """Let wide tables scroll, also by keys, without the page."""
    return html.replace('<table>', '<div class="scroll" tabindex="0"><table>').replace('</table>', '</table></div>')


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, because a page that is opened from a file may load no JSON."""
    site = pathlib.Path(config.site_dir)
    found = json.loads((site / 'search' / 'search_index.json').read_text())['docs']
    titles = {row['location']: row['title'] for row in found if '#' not in row['location']}
    about = {address.removesuffix('.md') + '.html' for page in config.nav[-1][ABOUT] for address in page.values()}
    rows = []
    for row in found:
        page, mark, _ = row['location'].partition('#')
        # An entry of a whole page repeats the text of its sections. The list of all tests is for readers of the code.
        if mark and page != LIST_OF_TESTS:
            rows.append([row['location'], row['title'], titles[page], ' '.join(row['text'].split()),
                         int(page in about)])
    (site / 'sections.js').write_text('const SECTIONS = ' + json.dumps(rows, ensure_ascii=False,
                                                                      separators=(',', ':')) + ';\n')
    shutil.rmtree(site / 'search')
    for sitemap in site.glob('sitemap.xml*'):       # it would need the address of a server
        sitemap.unlink()


if __name__ == '__main__':
    build_site(pathlib.Path(sys.argv[1]).resolve())
