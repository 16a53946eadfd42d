// Refreshes the page: fetches it again and replaces its main part, unless nobody sees it or somebody types.
'use strict';
const INTERVAL_MS = 5000;
const note = document.createElement('p');
note.setAttribute('role', 'status');
note.className = 'muted';
document.querySelector('footer').append(note);
let isPaused = false;
const pause = document.createElement('button');
pause.type = 'button';
function label() { pause.textContent = isPaused ? 'Refresh every 5 s' : 'Stop refreshing'; }
pause.addEventListener('click', () => { isPaused = !isPaused; label(); });
label();
document.querySelector('footer').append(pause);

// A path of positions finds the element again that had the focus.
function placeOf(element, top) {
  const path = [];
  for (; element && element !== top; element = element.parentElement)
    path.unshift([...element.parentElement.children].indexOf(element));
  return element === top ? path : null;
}
function at(top, path) {
  return path.reduce((element, index) => element && element.children[index], top);
}

async function refresh() {
  const main = document.querySelector('main');
  const focused = document.activeElement;
  if (isPaused || document.hidden || (focused && focused.tagName === 'INPUT') || String(getSelection())) return;
  try {
    const answer = await fetch(location.href, {headers: {'x-refresh': '1'}});
    if (!answer.ok) throw new Error(await answer.text());
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
    const place = placeOf(focused, main);
    const scrolled = [...main.querySelectorAll('.scroll')].map(each => [each.getAttribute('aria-labelledby'), each.scrollLeft]);
    main.replaceWith(next);
    for (const [name, left] of scrolled) {
      const found = next.querySelector(`.scroll[aria-labelledby="${name}"]`);
      if (found) found.scrollLeft = left;
    }
    const again = place && at(next, place);
    if (again) again.focus({preventScroll: true});
    note.textContent = '';
  } catch (error) {
    note.textContent = `No answer at ${new Date().toLocaleTimeString()}: the page shows an earlier state.`;
  }
}
setInterval(refresh, INTERVAL_MS);
document.addEventListener('visibilitychange', refresh);
