'use strict';
// Draws the data of the page: an overview strip, and lanes with the part in view. Bars that are too narrow to see
// are drawn together, by columns of pixels. Data never becomes markup: texts are inserted as text nodes.

const data = JSON.parse(document.getElementById('data').textContent);
const OUTCOMES = ['committed', 'aborted', 'open'], WORDS = data.words ?? OUTCOMES;
const [LANE, OUTCOME, FIRST, LAST, MARKER, BEGIN, WRITTEN, ENDED, PRODUCER, EPOCH, MARKER_EPOCH, COORDINATOR, RECORDS, BYTES, RESTART] =
  Array(15).keys();
const COLUMN = 2, NARROW = 4;
const rows = data.rows;
const byLane = data.lanes.map(() => []);
rows.forEach(row => byLane[row[LANE]].push(row));

const lanesSvg = document.getElementById('lanes'), overview = document.getElementById('overview');
const detail = document.getElementById('detail'), announcement = document.getElementById('announcement');
const state = {axis: 'offset', from: 0, to: 1, chosen: null};
let box = {};

// ---- places

const full = () => state.axis === 'offset' ? [data.start, data.end] : [data.startMs, Math.max(data.endMs, data.startMs + 1)];
const beginOf = row => state.axis === 'offset' ? row[FIRST] : row[BEGIN];
const writtenTo = row => state.axis === 'offset' ? row[LAST] + 1 : row[WRITTEN];
function endOf(row) {
  if (row[ENDED] === null) return full()[1];
  return state.axis === 'offset' ? row[MARKER] + 1 : Math.max(row[ENDED], row[BEGIN]);
}
const xOf = value => box.left + (value - state.from) / (state.to - state.from) * box.width;
const valueAt = x => state.from + (x - box.left) / box.width * (state.to - state.from);

function measure() {
  const width = Math.max(480, lanesSvg.parentElement.clientWidth);
  const left = Math.min(250, Math.max(120, width * .2));
  const lane = byLane.length <= 12 ? 34 : byLane.length <= 30 ? 25 : 18;
  box = {left, width: width - left - 8, all: width, lane, top: 62, bottom: 62 + lane * byLane.length};
}

// ---- words

const whole = number => number.toLocaleString('en-US');
const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? '' : 's'}`;
function clock(ms) {
  const date = new Date(ms);
  return isNaN(date) || ms < 0 ? `${ms} ms` : date.toISOString().replace('T', ' ');
}
function duration(ms) {
  if (ms < 0) return '-' + duration(-ms);
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  for (const [size, unit, part, partUnit] of [[86400, 'd', 3600, 'h'], [3600, 'h', 60, 'min'], [60, 'min', 1, 's']]) {
    if (seconds >= size) {
      const rest = Math.floor(seconds % size / part);
      return `${Math.floor(seconds / size)} ${unit}` + (rest ? ` ${rest} ${partUnit}` : '');
    }
  }
}
function bytes(size) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (size < 1024) return unit === 'B' ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}
function facts(row) {
  if (data.faults) return factsOfRun(row);
  const list = [['producer', `${row[PRODUCER]}, epoch ${row[EPOCH]}`],
    ['offsets', `${whole(row[FIRST])} to ${whole(row[LAST])}`],
    ['records', `${whole(row[RECORDS])}, ${bytes(row[BYTES])}`], ['began', clock(row[BEGIN])]];
  if (row[OUTCOME] === 2) {
    list.push(['last record', clock(row[WRITTEN])], ['open for', duration(data.readMs - row[BEGIN])]);
  } else {
    list.push(['marker', `offset ${whole(row[MARKER])}, epoch ${row[MARKER_EPOCH]}, coordinator epoch ${row[COORDINATOR]}`],
      ['ended', clock(row[ENDED])], ['duration', duration(row[ENDED] - row[BEGIN])]);
  }
  if (row[RESTART] !== null) list.push(['epoch jumped', row[RESTART]]);
  return list;
}
function factsOfRun(row) {
  const list = [['transaction', whole(row[FIRST])], ['producer', row[PRODUCER]], ['records', whole(row[RECORDS])],
    ['began', clock(row[BEGIN])]];
  if (row[MARKER] !== null) list.push(['commit requested', clock(row[WRITTEN])]);
  list.push([WORDS[row[OUTCOME]], clock(row[ENDED])], ['duration', duration(row[ENDED] - row[BEGIN])]);
  if (row[RESTART] !== null) list.push(['evidence', row[RESTART]]);
  return list;
}
function nameOf(row) {
  return `${data.ids[row[PRODUCER]] ?? `producer ${row[PRODUCER]}`}: ${WORDS[row[OUTCOME]]}`;
}

// ---- elements

function add(parent, name, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
const fit = (text, pixels) => text.length * 7 <= pixels ? text : text.slice(0, Math.max(1, Math.floor(pixels / 7) - 1)) + '…';
const round = number => Math.round(number * 10) / 10;

function ticks() {
  const count = Math.max(2, Math.floor(box.width / 120)), span = state.to - state.from;
  const steps = [];
  if (state.axis === 'offset') {
    for (let power = 1; power < 1e18; power *= 10) steps.push(power, 2 * power, 5 * power);
  } else {
    for (const power of [1, 10, 100]) steps.push(power, 2 * power, 5 * power);
    for (const [unit, sizes] of [[1e3, [1, 2, 5, 10, 15, 30]], [6e4, [1, 2, 5, 10, 15, 30]], [36e5, [1, 2, 3, 6, 12]],
      [864e5, [1, 2, 7, 14, 30, 90, 365, 3650]]]) for (const size of sizes) steps.push(unit * size);
  }
  const step = steps.find(size => span / size <= count) ?? span;
  const found = [];
  for (let value = Math.ceil(state.from / step) * step; value <= state.to; value += step) found.push([value, label(value, step)]);
  return found;
}
function label(value, step) {
  if (state.axis === 'offset') return whole(value);
  const [day, time] = clock(value).replace('Z', '').split(' ');
  if (!time) return clock(value);
  if (step >= 864e5 || (step >= 6e4 && time.startsWith('00:00:00'))) return day;
  return step >= 6e4 ? time.slice(0, 5) : step >= 1000 ? time.slice(0, 8) : time;
}

// ---- the strip

function drawOverview() {
  overview.replaceChildren();
  const height = 46;
  overview.setAttribute('viewBox', `0 0 ${box.all} ${height}`);
  const [start, end] = full(), columns = Math.floor(box.width / 3);
  const counted = OUTCOMES.map(() => new Array(columns).fill(0));
  for (const row of rows) {
    counted[row[OUTCOME]][Math.max(0, Math.min(columns - 1, Math.floor((beginOf(row) - start) / (end - start) * columns)))]++;
  }
  const most = Math.max(1, ...counted[0].map((count, column) => count + counted[1][column] + counted[2][column]));
  add(overview, 'text', {x: 0, y: 28}, 'transactions begun');
  add(overview, 'line', {class: 'grid', x1: box.left, x2: box.left + box.width, y1: height - 2, y2: height - 2});
  const paths = ['', '', ''];
  for (let column = 0; column < columns; column++) {
    let y = height - 2;
    for (const outcome of [2, 1, 0]) {
      const count = counted[outcome][column];
      if (!count) continue;
      const tall = Math.max(outcome ? 3 : 1, count / most * (height - 6));
      paths[outcome] += `M${round(box.left + column * 3)} ${round(y)}v${-round(tall)}h2.4v${round(tall)}z`;
      y -= tall;
    }
  }
  paths.forEach((path, outcome) => path && add(overview, 'path', {class: OUTCOMES[outcome], d: path}));
  const place = value => box.left + (value - start) / (end - start) * box.width;
  if (state.from > start || state.to < end) {
    add(overview, 'rect', {class: 'window', x: place(state.from), y: 1, height: height - 2,
      width: Math.max(3, place(state.to) - place(state.from))});
  }
}

// ---- the lanes

function drawLanes() {
  lanesSvg.replaceChildren();
  lanesSvg.setAttribute('viewBox', `0 0 ${box.all} ${box.bottom + 8}`);
  const defs = add(lanesSvg, 'defs', {});
  const hatch = add(defs, 'pattern', {id: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'});
  add(hatch, 'rect', {class: 'aborted', width: 6, height: 6, opacity: .3});
  add(hatch, 'rect', {class: 'aborted', width: 3, height: 6});
  const clip = add(defs, 'clipPath', {id: 'inside'});
  add(clip, 'rect', {x: box.left, y: 0, width: box.width + 2, height: box.bottom + 8});
  byLane.forEach((_, lane) => lane % 2 || add(lanesSvg, 'rect', {class: 'stripe', x: 0, y: box.top + lane * box.lane,
    width: box.all, height: box.lane}));
  for (const [value, text] of ticks()) {
    const x = round(xOf(value));
    add(lanesSvg, 'line', {class: 'grid', x1: x, x2: x, y1: box.top - 6, y2: box.bottom});
    add(lanesSvg, 'text', {x, y: box.top - 12, 'text-anchor': x > box.left + box.width - 40 ? 'end' : x < box.left + 40 ? 'start' : 'middle'}, text);
  }
  const inside = add(lanesSvg, 'g', {'clip-path': 'url(#inside)'});
  drawRules(inside);
  byLane.forEach((laneRows, lane) => drawLane(inside, lane, laneRows));
  data.lanes.forEach((lane, index) => {
    const y = box.top + index * box.lane, two = box.lane >= 30;
    const isOpen = byLane[index].some(row => row[OUTCOME] === 2);
    const name = add(lanesSvg, 'text', {class: isOpen ? 'name open' : 'name', x: 6, y: y + (two ? 15 : box.lane / 2 + 4.5)}, fit(lane.title, box.left - 16));
    add(name, 'title', {}, `${lane.title}\n${lane.detail}`);
    if (two) add(lanesSvg, 'text', {class: 'small', x: 6, y: y + 28}, fit(lane.detail, (box.left - 16) * 1.15));
  });
}

function drawFaults(parent) {
  for (const [name, begin, end] of data.faults) {
    if (end < state.from || begin > state.to) continue;
    const x = xOf(begin), width = Math.max(2, xOf(end) - x);
    add(parent, 'rect', {class: 'fault', x: round(x), y: 14, width: round(width), height: box.bottom - 14});
    if (width > name.length * 6) add(parent, 'text', {class: 'fault', x: round(x) + 2, y: 24}, name);
  }
}

function drawRules(parent) {
  if (data.faults) return drawFaults(parent);
  const time = state.axis === 'time';
  const stable = time ? data.lastStableMs : data.lastStable, watermark = time ? data.endMs : data.highWatermark;
  const isHeld = data.lastStable < data.highWatermark;
  if (isHeld) {
    const x = xOf(stable);
    add(parent, 'rect', {class: 'held', x: round(x), y: box.top, height: box.bottom - box.top, width: Math.max(0, round(xOf(watermark) - x))});
  }
  const rule = (value, name, row, kind) => {
    const x = round(xOf(value));
    if (value < state.from || value > state.to) return;
    add(parent, 'line', {class: `rule ${kind}`, x1: x, x2: x, y1: 14 + row * 16, y2: box.bottom});
    const onLeft = x - box.left > name.length * 7 + 12;
    add(parent, 'text', {class: `rule-name ${kind}`, x: onLeft ? x - 6 : x + 6, y: 13 + row * 16, 'text-anchor': onLeft ? 'end' : 'start'}, name);
  };
  if (isHeld) {
    rule(watermark, `high watermark ${whole(data.highWatermark)}`, 0, '');
    rule(stable, `last stable offset ${whole(data.lastStable)}`, 1, 'stable');
  } else {
    rule(watermark, `last stable offset and high watermark ${whole(data.highWatermark)}`, 0, '');
  }
}

function drawLane(parent, lane, laneRows) {
  const y = box.top + lane * box.lane + 5, height = box.lane - 10;
  const columns = new Map();
  const restarts = [];
  for (const row of laneRows) {
    const begin = beginOf(row), end = endOf(row);
    if (end < state.from || begin > state.to) continue;
    const x = xOf(begin), width = xOf(end) - x;
    if (row[RESTART] !== null) restarts.push(x);
    if (width >= NARROW || row[OUTCOME] === 2) drawBar(parent, row, x, Math.max(width, NARROW), y, height);
    else for (let column = Math.floor(x / COLUMN); column <= Math.floor((x + Math.max(width - .5, 0)) / COLUMN); column++) {
      const counts = columns.get(column) ?? [0, 0];
      counts[row[OUTCOME]]++;
      columns.set(column, counts);
    }
  }
  drawColumns(parent, columns, y, height);
  for (const x of restarts) add(parent, 'path', {class: 'restart', d: `M${round(x) - 5} ${y - 5}h10l-5 8z`});
}

function drawBar(parent, row, x, width, y, height) {
  const kind = OUTCOMES[row[OUTCOME]];
  const left = Math.max(x, box.left - 20), right = Math.min(x + width, box.left + box.width + 20);
  if (row[OUTCOME] === 2) {
    add(parent, 'rect', {class: 'bar open', x: round(left), y: y + .75, height: height - 1.5, rx: 2, width: round(Math.max(1, right - left + 6))});
  } else {
    const gap = width > 7 ? 1 : 0;
    const written = Math.min(Math.max(xOf(writtenTo(row)), x + 1), x + width - 2);
    const solid = Math.min(written, right);
    if (solid > left) add(parent, 'rect', {class: `bar ${kind}`, x: round(left), y, height, rx: width > 7 ? 2 : 0, width: round(solid - left)});
    if (right > written) add(parent, 'rect', {class: `waiting ${kind}`, x: round(Math.max(written, left)), y, height, width: round(Math.max(0, right - Math.max(written, left) - gap))});
    if (x + width <= right) add(parent, 'rect', {class: `marker ${kind}`, x: round(x + width - 2 - gap), y: y - 2, height: height + 4, width: 2});
  }
  if (row === state.chosen) add(parent, 'rect', {class: 'chosen', x: round(left) - 2, y: y - 3, height: height + 6, rx: 4, width: round(right - left) + 4});
}

function drawColumns(parent, columns, y, height) {
  let committed = '', aborted = '';
  for (const [column, [well, badly]] of columns) {
    const x = column * COLUMN, tall = badly ? Math.max(4, height * badly / (well + badly)) : 0;
    if (well) committed += `M${x} ${y}h${COLUMN}v${round(height - tall)}h${-COLUMN}z`;
    if (badly) aborted += `M${x} ${round(y + height - tall)}h${COLUMN}v${round(tall)}h${-COLUMN}z`;
  }
  if (committed) add(parent, 'path', {class: 'many committed', d: committed});
  if (aborted) add(parent, 'path', {class: 'many aborted', d: aborted});
}

function draw() {
  measure();
  drawOverview();
  drawLanes();
}

// ---- the part in view

function look(from, to) {
  const [start, end] = full(), least = Math.min(end - start, state.axis === 'offset' ? 4 : 20);
  const span = Math.min(end - start, Math.max(least, to - from));
  const middle = (from + to) / 2;
  state.from = Math.max(start, Math.min(end - span, middle - span / 2));
  state.to = state.from + span;
  remember();
  requestDraw();
}
let isWaiting = false;
function requestDraw() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => { isWaiting = false; draw(); });
}
function zoom(factor, around = (state.from + state.to) / 2) {
  look(around - (around - state.from) * factor, around + (state.to - around) * factor);
}
function move(share) {
  const by = (state.to - state.from) * share, [start, end] = full();
  const step = Math.max(start - state.from, Math.min(end - state.to, by));
  look(state.from + step, state.to + step);
}
function setAxis(axis) {
  state.axis = axis;
  const choice = document.querySelector(`input[name=axis][value=${axis}]`);
  if (choice) choice.checked = true;
  look(...full());
}
function choose(row) {
  state.chosen = row;
  if (!row) return;
  const begin = beginOf(row), end = endOf(row), span = state.to - state.from;
  const pixels = (end - begin) / span * box.width;
  if (pixels < 12) {
    const wide = Math.max((end - begin) * 40, 1);
    look((begin + end - wide) / 2, (begin + end + wide) / 2);
  } else if (begin < state.from || begin > state.to) look(begin - span / 10, begin + span * .9);
  else requestDraw();
  announcement.textContent = [nameOf(row), ...facts(row).map(pair => pair.join(' '))].join('; ');
}
function step(direction, accept = () => true) {
  let index = rows.indexOf(state.chosen);
  if (index < 0 && direction < 0) index = rows.length;
  for (index += direction; index >= 0 && index < rows.length; index += direction) if (accept(rows[index])) return choose(rows[index]);
}
function remember() {
  const [start, end] = full();
  const part = state.from > start || state.to < end ? `&from=${state.from}&to=${state.to}` : '';
  try { history.replaceState(null, '', `#axis=${state.axis}${part}`); } catch { /* some viewers of files forbid it */ }
}

// ---- hovering

function near(event) {
  const place = lanesSvg.getBoundingClientRect(), scale = box.all / place.width;
  const x = (event.clientX - place.left) * scale, y = (event.clientY - place.top) * scale;
  const lane = Math.floor((y - box.top) / box.lane);
  if (!byLane[lane] || x < box.left) return [];
  const from = valueAt(x - 2), to = valueAt(x + 2);
  return byLane[lane].filter(row => beginOf(row) <= to && endOf(row) >= from);
}
function showDetail(event) {
  const found = near(event);
  detail.hidden = !found.length;
  if (!found.length) return;
  detail.replaceChildren();
  const title = document.createElement('b'), table = document.createElement('table');
  let list;
  if (found.length === 1) {
    title.textContent = nameOf(found[0]);
    list = facts(found[0]);
  } else {
    title.textContent = `${plural(found.length, 'transaction')} here`;
    list = WORDS.map((name, outcome) => [name, whole(found.filter(row => row[OUTCOME] === outcome).length)]).filter(pair => pair[1] !== '0');
    const last = found[found.length - 1];
    list.push(data.faults ? ['transactions', `${whole(found[0][FIRST])} to ${whole(last[FIRST])}`]
      : ['offsets', `${whole(found[0][FIRST])} to ${whole(last[MARKER] ?? last[LAST])}`], ['', 'zoom in to tell them apart']);
  }
  for (const pair of list) {
    const line = table.insertRow();
    for (const text of pair) line.insertCell().textContent = text;
  }
  detail.append(title, table);
  const left = event.clientX + 18 + detail.offsetWidth > innerWidth ? event.clientX - detail.offsetWidth - 14 : event.clientX + 18;
  detail.style.left = `${Math.max(4, left)}px`;
  detail.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - detail.offsetHeight - 8))}px`;
}

// ---- input

let drag = null;
lanesSvg.addEventListener('pointerdown', event => {
  drag = {x: event.clientX, from: state.from, to: state.to, moved: false};
  lanesSvg.setPointerCapture(event.pointerId);
});
lanesSvg.addEventListener('pointermove', event => {
  if (!drag) return showDetail(event);
  const by = (drag.x - event.clientX) * box.all / lanesSvg.getBoundingClientRect().width / box.width * (drag.to - drag.from);
  drag.moved ||= Math.abs(drag.x - event.clientX) > 3;
  if (!drag.moved) return;
  lanesSvg.classList.add('dragged');
  detail.hidden = true;
  const [start, end] = full(), kept = Math.max(start - drag.from, Math.min(end - drag.to, by));
  look(drag.from + kept, drag.to + kept);
});
lanesSvg.addEventListener('pointerup', event => {
  if (drag && !drag.moved) {
    const found = near(event);
    if (found.length === 1) choose(found[0]);
  }
  drag = null;
  lanesSvg.classList.remove('dragged');
});
lanesSvg.addEventListener('pointerleave', () => { detail.hidden = true; });
lanesSvg.addEventListener('dblclick', event => {
  const place = lanesSvg.getBoundingClientRect();
  zoom(.4, valueAt((event.clientX - place.left) * box.all / place.width));
});
lanesSvg.addEventListener('wheel', event => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const place = lanesSvg.getBoundingClientRect();
  zoom(Math.exp(event.deltaY * .0025), valueAt((event.clientX - place.left) * box.all / place.width));
}, {passive: false});

let brush = null;
function overviewValue(event) {
  const place = overview.getBoundingClientRect(), [start, end] = full();
  const x = (event.clientX - place.left) * box.all / place.width;
  return start + Math.max(0, Math.min(1, (x - box.left) / box.width)) * (end - start);
}
overview.addEventListener('pointerdown', event => { brush = overviewValue(event); overview.setPointerCapture(event.pointerId); });
overview.addEventListener('pointermove', event => {
  if (brush === null) return;
  const value = overviewValue(event);
  look(Math.min(brush, value), Math.max(brush, value));
});
overview.addEventListener('pointerup', event => {
  const value = overviewValue(event), span = state.to - state.from;
  if (brush === value) look(value - span / 2, value + span / 2);
  brush = null;
});

const DEEDS = {
  'ArrowLeft': () => move(-.2), 'ArrowRight': () => move(.2), '+': () => zoom(.5), '=': () => zoom(.5), '-': () => zoom(2),
  '0': () => look(...full()), 'Home': () => look(...full()), 'n': () => step(1), 'p': () => step(-1),
  'u': () => step(1, row => row[OUTCOME] !== 0), 't': () => data.faults || setAxis(state.axis === 'offset' ? 'time' : 'offset'),
  'Escape': () => { choose(null); detail.hidden = true; requestDraw(); },
};
lanesSvg.addEventListener('keydown', event => {
  const deed = DEEDS[event.key];
  if (!deed || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  deed();
});
document.querySelectorAll('button[data-do]').forEach(button => button.addEventListener('click', () => (
  {in: () => zoom(.5), out: () => zoom(2), all: () => look(...full())})[button.dataset.do]()));
document.querySelectorAll('input[name=axis]').forEach(input => input.addEventListener('change', () => setAxis(input.value)));
addEventListener('resize', requestDraw);

// ---- the start, with the view that the address names

const asked = new URLSearchParams(location.hash.slice(1));
measure();
const [askedFrom, askedTo, select] = ['from', 'to', 'select'].map(name => asked.has(name) ? Number(asked.get(name)) : NaN);
setAxis(data.faults || asked.get('axis') === 'time' ? 'time' : 'offset');
if (askedFrom < askedTo) look(askedFrom, askedTo);
draw();
if (!isNaN(select)) { choose(rows.find(row => row[FIRST] === select) ?? null); draw(); }
