"""The page in a headless browser, served with its policy."""
import threading
import time

import pytest
from page.test_page import HOSTILE, facts_of
from support.runner.browser import OpenPage

from kbroker.base.clock import Clock, Timers
from kbroker.base.long_work import LongWork
from kbroker.http.messages import Answer
from kbroker.http.routes import Route, Routes
from kbroker.http.server import HttpServer, listen
from kbroker.network.reactor import Reactor
from kbroker.page.render import FILES, HEADERS, HTML, file_of_page, page, text_page

pytestmark = pytest.mark.browser


class Address:
    """The address of a page of a server, in the place of the path of a file."""

    def __init__(self, address):
        self.address = address

    def as_uri(self):
        return self.address


class Site:
    """A server of the page. `facts` are those that it shows next, `served` counts the pages."""

    def __init__(self, port, facts):
        self.port = port
        self.facts = facts
        self.served = 0

    def at(self, path=''):
        return Address(f'http://127.0.0.1:{self.port}/{path}')

    def routes(self):
        def show(request):
            self.served += 1
            return Answer(page(self.facts, request.query), content_type=HTML, headers=HEADERS)

        def show_text(_request):
            self.served += 1
            return Answer([text_page(self.facts, 'why', ('kbroker-transactions', 'why-stuck', 'a:0'), '<b>held</b>')],
                          content_type=HTML, headers=HEADERS)

        def show_file(request):
            return Answer([file_of_page(request.path)], content_type=FILES[request.path])

        return Routes([Route('/', show), Route('/why-stuck', show_text), *(Route(path, show_file) for path in FILES)])


@pytest.fixture
def site():
    timers = Timers(Clock())
    reactor = Reactor(Clock(), timers)
    listener = listen('127.0.0.1', 0)
    found = Site(listener.getsockname()[1], facts_of(HOSTILE, 60))
    server = HttpServer(reactor, LongWork(timers), listener, found.routes())
    thread = threading.Thread(target=reactor.run)
    thread.start()
    yield found
    reactor.stop()
    thread.join()
    server.close()
    listener.close()
    reactor.close()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline


def test_hostile_names_run_nothing_and_break_no_policy(site):
    with OpenPage(site.at()) as opened:
        assert opened.value('document.querySelectorAll("main img, main script").length') == 0
        assert '<script>alert(1)</script>' in opened.value('document.querySelector("main").innerText')
        assert opened.value('getComputedStyle(document.querySelector(".tiles")).display') == 'grid'
        assert opened.faults == []


def test_the_page_fits_a_phone_and_prefers_the_colours_of_its_reader(site):
    with OpenPage(site.at(), size=(360, 740)) as opened:
        assert opened.value('document.documentElement.scrollWidth') <= 360
        colours = []
        for preferred in 'light', 'dark':
            opened.prefer(preferred)
            colours.append(opened.value('getComputedStyle(document.body).backgroundColor'))
        assert colours == ['rgb(251, 251, 250)', 'rgb(20, 24, 27)']


def test_the_page_refreshes_itself_and_keeps_the_focus(site):
    with OpenPage(site.at('#g')) as opened:
        opened.value('document.querySelector("#g-rows").focus()')
        scrolled = opened.value('scrollY')
        assert scrolled > 500
        site.facts = facts_of(['changed-name'], 60)
        until(lambda: 'changed-name' in opened.value('document.querySelector("main").innerText'))
        assert opened.value('document.activeElement.id') == 'g-rows'
        assert opened.value('scrollY') == scrolled
        assert opened.faults == []


def test_the_page_of_a_command_does_not_run_it_again_and_offers_to_copy_it(site):
    with OpenPage(site.at('why-stuck')) as opened:
        assert opened.value('document.querySelector(".output").textContent') == '<b>held</b>'
        assert opened.value('document.querySelector(".command + button").textContent') == 'Copy'
        assert opened.value('document.querySelector("meta[name=refreshes]")') is None
        assert opened.faults == []


def test_the_page_works_without_scripts(site):
    """Links sort, filter and turn pages: nothing that a reader needs is made by the script."""
    with OpenPage(Address('about:blank')) as opened:
        opened._ask('Emulation.setScriptExecutionDisabled', value=True)
        opened.open_next(site.at('?ts=open+for&tp=2#t'))
        tree = opened._ask('DOM.getDocument', depth=-1)
        html = opened._ask('DOM.getOuterHTML', nodeId=tree['root']['nodeId'])['outerHTML']
        assert 'page 2 of 3' in html
        assert 'aria-sort="ascending"' in html
        assert 'Stop refreshing' not in html
        assert opened.faults == []
