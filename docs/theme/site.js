'use strict';
// The switch of the colours, the menu of narrow windows, and the search. The index of the search is a script that
// declares `SECTIONS`, because a page that was opened from a file may not fetch another file.

const root = document.documentElement, here = document.currentScript.src.replace(/[^/]*$/, '');
root.classList.add('script');

const stored = {
  get colours() { try { return localStorage.getItem('colours'); } catch { return null; } },
  set colours(value) { try { localStorage.setItem('colours', value); } catch { /* the browser stores nothing */ } },
};
if (stored.colours) root.style.colorScheme = stored.colours;

function switchColours() {
  const now = root.style.colorScheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  root.style.colorScheme = stored.colours = now === 'dark' ? 'light' : 'dark';
}

// ---- the search

const SHOWN = 12, AROUND = 70;
let sections = [], loading = null, chosen = -1;

function load() {
  return loading ??= new Promise(done => {
    const script = document.createElement('script');
    script.src = here + 'sections.js';
    script.onload = done;
    document.head.append(script);
  }).then(() => {
    sections = SECTIONS.map(([address, title, page, text, about]) => (
      {address, title, page, text, weight: about ? .5 : 1, low: text.toLowerCase(), lowTitle: title.toLowerCase(), lowPage: page.toLowerCase()}));
  });
}

// Every word must occur in a section, in its title or in the title of its page. Titles count more than texts, and pages
// for users more than those about the project.
function scoreOf(section, query, words) {
  let score = 0;
  for (const word of words) {
    const inTitle = section.lowTitle.indexOf(word), inText = section.low.indexOf(word);
    if (inTitle < 0 && inText < 0 && !section.lowPage.includes(word)) return 0;
    score += (inTitle < 0 ? 0 : inTitle === 0 ? 14 : 10) + (inText < 0 ? 0 : 1 + Math.min(3, section.low.split(word).length - 1))
      + (section.lowPage.includes(word) ? 3 : 0);
  }
  const whole = section.lowTitle === query ? 60 : section.lowTitle.includes(query) ? 15 : section.low.includes(query) ? 5 : 0;
  return (score + whole) * section.weight;
}

function found(query) {
  const words = query.split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  return sections.map(section => [scoreOf(section, query, words), section]).filter(([score]) => score)
    .sort(([one], [other]) => other - one).slice(0, SHOWN).map(([, section]) => section);
}

// Return a piece of the section's text around the first word that was found, with the words marked.
function extract(section, words) {
  const place = Math.min(...words.map(word => section.low.indexOf(word)).filter(at => at >= 0), section.text.length);
  const from = place === section.text.length ? 0 : Math.max(0, place - AROUND);
  const start = Math.max(from && from - 15, section.text.lastIndexOf(' ', from) + 1);
  const end = section.text.indexOf(' ', start + 2.5 * AROUND);
  const piece = (start ? '… ' : '') + section.text.slice(start, end < 0 ? undefined : Math.min(end, start + 3 * AROUND))
    + (end < 0 ? '' : ' …'), low = piece.toLowerCase();
  const parts = [];
  for (let at = 0; at < piece.length;) {
    const next = words.map(word => [low.indexOf(word, at), word]).filter(([next]) => next >= 0).sort((a, b) => a[0] - b[0])[0];
    parts.push(piece.slice(at, next ? next[0] : undefined));
    if (!next) break;
    const mark = document.createElement('mark');
    mark.textContent = piece.slice(next[0], at = next[0] + next[1].length);
    parts.push(mark);
  }
  return parts;
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function show(query) {
  const box = document.getElementById('query'), results = document.getElementById('results');
  const words = query.split(/\s+/).filter(Boolean), list = found(query);
  chosen = -1;
  results.replaceChildren(...list.map((section, number) => {
    const link = element('a', element('b', section.title), ' ',
      element('small', section.page === section.title ? '' : section.page), element('p', ...extract(section, words)));
    link.href = here + section.address;
    link.tabIndex = -1;
    const item = element('li', link);
    item.id = `found-${number}`;
    item.role = 'option';
    item.ariaSelected = 'false';
    return item;
  }));
  if (words.length && !list.length) {
    const none = element('li', 'Nothing found');
    none.className = 'none';
    results.append(none);
  }
  results.hidden = !words.length;
  box.ariaExpanded = String(!results.hidden);
  box.removeAttribute('aria-activedescendant');
}

function choose(number) {
  const items = [...document.querySelectorAll('#results [role=option]')];
  if (!items.length) return;
  items[chosen]?.setAttribute('aria-selected', 'false');
  chosen = (number + items.length) % items.length;
  items[chosen].setAttribute('aria-selected', 'true');
  items[chosen].scrollIntoView({block: 'nearest'});
  document.getElementById('query').setAttribute('aria-activedescendant', items[chosen].id);
}

function hide() {
  document.getElementById('results').hidden = true;
  document.getElementById('query').ariaExpanded = 'false';
}

function keyInBox(event) {
  const keys = {
    ArrowDown: () => choose(chosen + 1), ArrowUp: () => choose(Math.max(chosen, 0) - 1), Escape: hide,
    Enter: () => document.querySelectorAll('#results a')[Math.max(chosen, 0)]?.click(),
  };
  if (!keys[event.key] || document.getElementById('results').hidden) return;
  event.preventDefault();
  keys[event.key]();
}

addEventListener('DOMContentLoaded', () => {
  const box = document.getElementById('query'), menu = document.getElementById('menu'), nav = document.getElementById('nav');
  document.getElementById('colours').addEventListener('click', switchColours);
  menu.addEventListener('click', () => { menu.ariaExpanded = String(nav.classList.toggle('open')); });
  for (const kind of ['input', 'focus']) {
    box.addEventListener(kind, () => load().then(() => show(box.value.trim().toLowerCase())));
  }
  box.addEventListener('keydown', keyInBox);
  document.addEventListener('click', event => { if (!event.target.closest('.search') || event.target.closest('#results a')) hide(); });
  document.addEventListener('keydown', event => {
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.matches('input')) return;
    event.preventDefault();
    box.focus();
  });
  // The entry of this page is in view, even if the list of pages is longer than the window.
  const current = nav.querySelector('[aria-current]');
  if (current) nav.scrollTop = current.offsetTop - nav.clientHeight / 2;
});
