"""The site of the documents in a browser: opened as files, with its search, in light and dark, on a phone."""
import re

import pytest
from mkdocs.exceptions import Abort
from support.runner.browser import OpenPage
from support.runner.pages import ROOT, load

from kbroker.settings.table import SETTINGS

PHONE = (390, 844)
LEAST_CONTRAST = 4.5
"""The ratio that the Web Content Accessibility Guidelines (level AA) demand of text."""

FOUND = "[...document.querySelectorAll('#results b')].map(title => title.textContent)"
GROUND = 'getComputedStyle(document.body).backgroundColor'
LIGHT, DARK = 'rgb(251, 251, 250)', 'rgb(20, 24, 27)'
FAINTEST = """(() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map(value => value / 255)
    .map(value => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
    .reduce((sum, value, channel) => sum + value * [.2126, .7152, .0722][channel], 0);
  const ground = element => {
    const colour = channels(getComputedStyle(element).backgroundColor);
    return colour[3] === 0 ? ground(element.parentElement) : colour;
  };
  let least = [Infinity, ''];
  for (const element of document.querySelectorAll('body *')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    const both = [light(channels(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(...both) + .05) / (Math.min(...both) + .05);
    if (contrast < least[0]) least = [contrast, element.outerHTML.slice(0, 80)];
  }
  return least;
})()"""
"""Return the lowest contrast of a text of the page, and the text."""


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp('site')
    load(ROOT / 'docs' / 'build.py').build_site(directory)
    return directory


def test_a_page_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob('*.html'))
    assert len(pages) > 30
    for page in pages:
        for tag in re.findall(r'<(?:script|link|img|iframe|source)\b[^>]*>', page.read_text()):
            assert not re.search(r'(?:src|href)="(?:\w+:)?//', tag), (page, tag)
    for file in (site / 'site.css', site / 'site.js'):
        assert not re.search(r'//\w|@import|url\(|fetch\(', file.read_text())


def test_each_option_and_each_setting_has_a_place_in_the_site(site):
    for page in (ROOT / 'man').glob('*.[18]'):
        html = (site / 'man' / f'{page.name}.html').read_text()
        for option in re.findall(r'^\.B (\\-\\-[a-z\\-]+)', page.read_text(), re.MULTILINE):
            assert '<dt><code>' + option.replace('\\', '') in html or option == '\\-\\-version'
    html = (site / 'man' / 'kbroker.properties.5.html').read_text()
    for setting in SETTINGS.values():
        assert setting.internal or f'<h3 id="{setting.name}">' in html


def test_no_block_of_code_is_in_a_list():
    """A code host shows such a block, but mkdocs does not."""
    assert [page for page in [*ROOT.glob('*.md'), *ROOT.glob('docs/*.md'), *ROOT.glob('bench/*.md')]
            if re.search('^ +```', page.read_text(), re.MULTILINE)] == []


def test_a_page_of_the_site_that_the_list_of_pages_lacks_is_an_error(tmp_path, monkeypatch):
    build = load(ROOT / 'docs' / 'build.py')
    copy_pages = build.copy_pages

    def with_a_page_more(to):
        copy_pages(to)
        (to / 'docs' / 'lost.md').write_text('# Lost\n')

    monkeypatch.setattr(build, 'copy_pages', with_a_page_more)
    with pytest.raises(Abort):
        build.build_site(tmp_path / 'site')


@pytest.mark.browser
def test_the_search_works_in_a_page_that_was_opened_as_a_file(site):
    with OpenPage(site / 'docs' / 'testing.html') as opened:
        opened.press('/')
        for letter in 'why-stuck':
            opened.press(letter)
        opened.value('load()')
        found = opened.value(FOUND)
        assert found[0] == 'why-stuck'
        assert 1 < len(found) <= 12
        for key in ('ArrowDown', 'ArrowDown'):
            opened.press(key)
        assert opened.value("document.querySelector('[aria-selected=true] b').textContent") == found[1]
        opened.press('Escape')
        assert opened.value("document.getElementById('results').hidden")
        for words, first in (('num.partitions', 'num.partitions'), ('two-phase commit', 'Two-phase commit'),
                             ('durability', 'Durability')):
            opened.value(f"document.getElementById('query').value = '{words}'")
            opened.value("document.getElementById('query').dispatchEvent(new Event('input'))")
            assert opened.value(FOUND)[0] == first
        pages = opened.value("[...document.querySelectorAll('#results small')].map(page => page.textContent)")
        assert pages.index('Operate a broker') < pages.index('Changes'), 'pages for users come first'
        opened.value("document.getElementById('query').value = 'nowhere-named'")
        opened.value("document.getElementById('query').dispatchEvent(new Event('input'))")
        assert opened.value("document.getElementById('results').textContent") == 'Nothing found'
        assert opened.faults == []


@pytest.mark.browser
def test_a_page_is_dark_if_the_reader_prefers_it_or_switches(site):
    with OpenPage(site / 'index.html') as opened:
        opened.prefer('dark')
        assert opened.value(GROUND) == DARK
        opened.prefer('light')
        assert opened.value(GROUND) == LIGHT
        opened.value("document.getElementById('colours').click()")
        assert opened.value(GROUND) == DARK
        opened.open_next(site / 'docs' / 'groups.html')
        assert opened.value(GROUND) == DARK
        assert opened.faults == []


@pytest.mark.browser
def test_every_page_fits_a_phone_and_can_be_read_in_light_and_dark(site):
    pages = sorted(site.rglob('*.html'))
    with OpenPage(pages[0], size=PHONE) as opened:
        for page in pages:
            opened.open_next(page)
            assert opened.value('document.documentElement.scrollWidth') <= PHONE[0], page
            for colours in ('light', 'dark'):
                opened.prefer(colours)
                contrast, text = opened.value(FAINTEST)
                assert contrast >= LEAST_CONTRAST, (page, colours, text)
        opened.press('/')
        opened.press('a')
        opened.value('load()')
        left, right = opened.value("(box => [box.left, box.right])(document.getElementById('results')"
                                   '.getBoundingClientRect())')
        assert 0 <= left < right <= PHONE[0]
        opened.press('Escape')
        assert opened.value("getComputedStyle(document.getElementById('nav')).display") == 'none'
        opened.value("document.getElementById('menu').click()")
        assert opened.value("getComputedStyle(document.getElementById('nav')).display") == 'block'
        assert opened.faults == []
