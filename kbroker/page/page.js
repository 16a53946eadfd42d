// Refreshes the page: fetches it again and replaces its main part, unless nobody sees it or somebody uses it.
// A page without the element `refreshes` stays as it is. Commands get a button that copies them.
'use strict';
const asked = document.querySelector('meta[name=refreshes]');
const footer = document.querySelector('footer');

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

function button(text, act) {
  const made = document.createElement('button');
  made.type = 'button';
  made.textContent = text;
  made.addEventListener('click', () => act(made));
  return made;
}

// Browsers have a clipboard only for https and for addresses of this machine. Elsewhere a click selects the command.
function offerCopies() {
  if (!navigator.clipboard) return;
  for (const command of document.querySelectorAll('pre.command')) {
    command.after(button('Copy', async made => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        made.textContent = 'Copied';
      } catch {
        getSelection().selectAllChildren(command);
        made.textContent = 'Selected: copy it with the keyboard';
      }
    }));
  }
}

function keepFresh(intervalMs) {
  const note = document.createElement('p');
  note.setAttribute('role', 'status');
  let isPaused = false;
  const label = () => (isPaused ? `Refresh every ${intervalMs / 1000} s` : 'Stop refreshing');
  footer.append(note, button(label(), made => { isPaused = !isPaused; made.textContent = label(); }));

  async function refresh() {
    const main = document.querySelector('main');
    const focused = document.activeElement;
    if (isPaused || document.hidden || (focused && focused.tagName === 'INPUT') || String(getSelection())) return;
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) throw new Error(await answer.text());
      const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
      if (document.activeElement !== focused) return;
      const place = placeOf(focused, main);
      const scrolled = [...main.querySelectorAll('.scroll')].map(each => [each.id, each.scrollLeft]);
      main.replaceWith(next);
      for (const [id, left] of scrolled) {
        const found = id && document.getElementById(id);
        if (found) found.scrollLeft = left;
      }
      const again = place && at(next, place);
      if (again) again.focus({preventScroll: true});
      note.textContent = '';
      note.className = '';
    } catch {
      note.textContent = `No answer at ${new Date().toLocaleTimeString()}. The page shows an earlier state.`;
      note.className = 'bad';
    }
  }
  setInterval(refresh, intervalMs);
  document.addEventListener('visibilitychange', refresh);
}

offerCopies();
if (asked) keepFresh(Number(asked.content));
