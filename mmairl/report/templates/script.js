'use strict';
// What an open page can do. Without this script it shows all that it has.

const all = (css, of = document) => [...of.querySelectorAll(css)];
const words = text => text.replace(/\s+/g, ' ').trim();

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function make(tag, attributes = {}, ...children) {
  const made = set(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function button(text, said, press) {
  const made = make('button', { type: 'button', 'aria-label': said }, text);
  made.addEventListener('click', () => press(made));
  return made;
}

// ---- The view is kept in the address behind a question mark, so that a link shows the same: #row-1?sort0=2d&rows0=byol

const view = new URLSearchParams(location.hash.split('?')[1]);

function keep(key, value) {
  if (value) view.set(key, value);
  else view.delete(key);
  const place = location.hash.split('?')[0] || '#';
  history.replaceState(null, '', place + (String(view) ? `?${view}` : ''));
}

// A link into a folded part opens it.
function unfold() {
  const found = document.getElementById(location.hash.slice(1).split('?')[0]);
  for (let e = found; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true;
  if (found) found.scrollIntoView();
}
addEventListener('hashchange', () => { unfold(); keep(); });

for (const [i, fold] of all('details').entries()) {
  if (view.has(`open${i}`)) fold.open = true;
  fold.addEventListener('toggle', () => keep(`open${i}`, fold.open ? '1' : ''));
}
unfold();

// ---- Copies: into the clipboard, or into a file where the browser keeps the clipboard shut

async function give(from, content, file) {
  try {
    if (typeof content === 'string') await navigator.clipboard.writeText(content);
    else await navigator.clipboard.write([new ClipboardItem({ [content.type]: content })]);
    from.dataset.done = 'copied';
  } catch {
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content]));
    make('a', { href: url, download: file }).click();
    from.dataset.done = 'saved';
  }
  said.textContent = from.dataset.done;
  setTimeout(() => { delete from.dataset.done; said.textContent = ''; }, 1500);
}
const said = document.body.appendChild(make('output', { class: 'said' }));

const escaped = (text, signs) => [...text].map(sign => signs[sign] ?? sign).join('');
const MARKDOWN = Object.fromEntries([...'\\|`*_[]$~'].map(sign => [sign, `\\${sign}`]).concat([['<', '&lt;'], ['&', '&amp;']]));
const LATEX = {
  ...Object.fromEntries([...'&%$#_{}'].map(sign => [sign, `\\${sign}`])),
  '\\': '\\textbackslash{}', '~': '\\textasciitilde{}', '^': '\\textasciicircum{}', '<': '\\textless{}', '>': '\\textgreater{}',
  '|': '\\textbar{}', '"': '\\textquotedbl{}', '[': '{[}', '—': '---', '–': '--', '−': '$-$', '±': '$\\pm$',
  '×': '$\\times$', 'Δ': '$\\Delta$', '·': '$\\cdot$', '→': '$\\rightarrow$',
};
const csvCell = text => {
  text = text.replace(/^−(?=\d)/, '-');
  if (/^[=+@-]/.test(text) && isNaN(text)) text = `'${text}`; // or a spreadsheet takes a name for a formula
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const FORMATS = {
  CSV: lines => lines.map(line => line.map(csvCell).join(',') + '\r\n').join(''),
  Markdown: ([head, ...lines]) => [head, head.map(() => '---'), ...lines]
    .map((line, i) => `| ${line.map(cell => i === 1 ? cell : escaped(cell, MARKDOWN)).join(' | ')} |\n`).join(''),
  LaTeX: ([head, ...lines]) => {
    const [top, ...rest] = [head, ...lines].map(line => `${line.map(cell => escaped(cell, LATEX)).join(' & ')} \\\\\n`);
    return `\\begin{tabular}{l${'r'.repeat(head.length - 1)}}\n\\toprule\n${top}\\midrule\n${rest.join('')}\\bottomrule\n\\end{tabular}\n`;
  },
};

// ---- A row that is pointed at is marked in each table and figure of the page

const markers = [];
const mark = name => markers.forEach(show => show(name));

// ---- Tables: sorted by a column, filtered by text, copied

const UNITS = { min: 60, h: 3600, kFLOP: 1e3, MFLOP: 1e6, GFLOP: 1e9, TFLOP: 1e12, PFLOP: 1e15, EFLOP: 1e18, ZFLOP: 1e21 };

// A cell's number in its unit, its text where it is none, or null where it is blank; blank ones stand last either way.
function worth(cell) {
  const text = words(cell?.textContent ?? '');
  if (['', '—', '–'].includes(text)) return null;
  const plain = text.replaceAll('−', '-').replace(/(\d),(?=\d{3})/g, '$1');
  const number = cell.tagName === 'TD' && plain.match(/^[(≤<>±+ ]*(-?\d+\.?\d*(?:e[-+]?\d+)?)(?: (\w+))?/i);
  return number ? number[1] * (UNITS[number[2]] ?? 1) : text;
}

function inOrder(one, two, sign) {
  if (one === null || two === null) return (one === null) - (two === null);
  if (typeof one === 'number' && typeof two === 'number') return sign * (one - two);
  return sign * String(one).localeCompare(String(two), 'en', { numeric: true });
}

for (const [i, table] of all('table').entries()) {
  const rows = [...table.tBodies[0].rows], heads = [...[...table.tHead.rows].at(-1).cells];
  const nameOf = row => words((row.querySelector('th a') ?? row.querySelector('th'))?.textContent ?? '');
  let sorted = view.get(`sort${i}`) ?? '';

  function show() {
    const column = parseInt(sorted), sign = sorted.endsWith('d') ? -1 : 1;
    const order = rows.map(row => [worth(row.cells[column]), row]);
    if (sorted) order.sort((one, two) => inOrder(one[0], two[0], sign));
    table.tBodies[0].append(...order.map(([, row]) => row));
    heads.forEach((head, c) => head.setAttribute('aria-sort', c !== column ? 'none' : sign < 0 ? 'descending' : 'ascending'));
    const wanted = filter.value.toLowerCase();
    for (const row of rows) row.hidden = !words(row.innerText || row.textContent).toLowerCase().includes(wanted);
    keep(`sort${i}`, sorted);
    keep(`rows${i}`, filter.value);
  }

  const filter = make('input', { type: 'search', placeholder: 'filter', 'aria-label': 'Show the rows that have this text', value: view.get(`rows${i}`) ?? '' });
  filter.addEventListener('input', show);
  const cells = row => [...row.cells].map(cell => words(cell.innerText));
  const copy = name => button(name, `Copy the table as ${name}`, from => {
    const shown = [...table.tBodies[0].rows].filter(row => !row.hidden);
    give(from, FORMATS[name]([heads.map(head => words(head.innerText)), ...shown.map(cells)]), `table.${name.toLowerCase()}`);
  });
  const tools = make('div', { class: 'tools' }, ...(rows.length > 3 ? [filter] : []), ...Object.keys(FORMATS).map(copy));
  const frame = table.closest('.scroll');
  frame.after(tools);
  heads.forEach((head, column) => {
    const inner = [...head.childNodes], press = button('', `Sort by ${words(head.textContent)}`, () => {
      sorted = { [`${column}d`]: `${column}a`, [`${column}a`]: '' }[sorted] ?? `${column}d`;
      show();
    });
    press.append(...inner);
    head.append(press);
  });

  // Up and down move the mark, as the pointer does.
  let at = -1;
  const step = by => {
    const shown = [...table.tBodies[0].rows].filter(row => !row.hidden);
    at = Math.max(0, Math.min(shown.length - 1, at + by));
    shown[at]?.scrollIntoView({ block: 'nearest' });
    mark(nameOf(shown[at]));
    said.textContent = cells(shown[at]).join(', ');
  };
  set(frame, { tabindex: 0, role: 'region', 'aria-label': `Table ${i + 1}; the arrow keys mark a row in the figures` });
  frame.addEventListener('keydown', event => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && event.target === frame) { event.preventDefault(); step(by); }
    if (event.key === 'Escape') mark(null);
  });
  for (const row of rows) {
    row.addEventListener('pointerenter', () => mark(nameOf(row)));
    row.addEventListener('pointerleave', () => mark(null));
  }
  markers.push(name => rows.forEach(row => row.classList.toggle('marked', name !== null && nameOf(row) === name)));
  show();
}

// ---- Charts: a point tells its value, a line can be hidden, a picture copied

const drawing = (tag, attributes) => set(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes);
const circle = point => drawing('circle', { cx: point.at[0], cy: point.at[1], r: 6, class: 'ring' });
const share = (value, { ends: [low, high], log }) =>
  log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);

function pointsOf(axes) {
  const [left, top, width, height] = axes.box;
  return axes.series.flatMap(series => series.x.map((x, i) => {
    const y = series.y[i], name = words(series.name), along = axes.ticks ? axes.ticks[x] : x;
    const at = [left + width * share(x, axes.x), top + height * (1 - share(y, axes.y))];
    const where = axes.series.length > 1 || axes.title !== series.name ? axes.title : '';
    const text = series.text || [y, where || axes.y.label, 'at', axes.x.label, along].filter(part => part !== '').join(' ');
    return { id: series.id, name, at, x: along, y, text: `${name}: ${text}` };
  }).filter(point => point.y !== null));
}

for (const [i, svg] of all('svg.plot').entries()) {
  const points = JSON.parse(svg.dataset.chart).flatMap(pointsOf);
  const label = svg.getAttribute('aria-label');
  const frame = make('div', { class: 'chart' }), tip = make('output', { class: 'tip' }), tools = make('div', { class: 'tools' });
  svg.replaceWith(make('div', {}, frame, tools));
  frame.append(svg, tip);
  const hidden = new Set(view.get(`hide${i}`)?.split('.').map(Number));
  const names = [...new Set(points.map(point => point.name))];
  const drawn = id => document.getElementById(id);
  const shown = () => points.filter(point => !hidden.has(names.indexOf(point.name)));
  let now = null;

  function point(to) {
    now = to;
    all('.ring', svg).forEach(ring => ring.remove());
    tip.textContent = to?.text ?? '';
    mark(to?.name ?? null);
    if (!to) return;
    svg.append(circle(to));
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const [x, y] = to.at.map(value => value * scale);
    tip.style.left = `${Math.max(0, Math.min(x - 60, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${y > 50 ? y - tip.offsetHeight - 12 : y + 14}px`;
  }
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = null, least = 80 ** 2;
    for (const one of shown()) {
      const far = (one.at[0] - x) ** 2 + (one.at[1] - y) ** 2;
      if (far < least) [best, least] = [one, far];
    }
    if (best !== now) point(best);
  });
  svg.addEventListener('pointerleave', () => point(null));

  set(frame, { tabindex: 0, role: 'group', 'aria-label': points.length ? `${label}; the arrow keys read its points` : label });
  if (points.length) {
    frame.addEventListener('blur', () => point(null));
    frame.addEventListener('keydown', event => {
      const choice = shown(), own = choice.filter(one => one.id === (now ?? choice[0])?.id), place = own.indexOf(now);
      const series = [...new Set(choice.map(one => one.id))], next = by => choice.find(one => one.id === series.at((series.indexOf(now?.id) + by) % series.length));
      const moves = {
        ArrowRight: () => own[Math.min(place + 1, own.length - 1)], ArrowLeft: () => own[Math.max(place - 1, 0)],
        Home: () => own[0], End: () => own.at(-1), ArrowDown: () => next(1), ArrowUp: () => next(-1), Escape: () => null,
      };
      if (event.target !== frame || !moves[event.key]) return;
      event.preventDefault();
      point(moves[event.key]() ?? null);
    });
  }

  function hide() {
    for (const one of points) drawn(one.id)?.classList.toggle('hidden', hidden.has(names.indexOf(one.name)));
    keep(`hide${i}`, [...hidden].join('.'));
  }
  if (names.length > 1 && points.some(one => drawn(one.id))) {
    const choices = names.map((name, n) => {
      const box = make('input', { type: 'checkbox' });
      box.checked = !hidden.has(n);
      box.addEventListener('change', () => { if (box.checked) hidden.delete(n); else hidden.add(n); hide(); });
      return make('label', {}, box, name);
    });
    tools.append(make('details', {}, make('summary', {}, 'show'), ...choices));
    hide();
  }
  tools.append(
    button('SVG', `Copy the figure ${label} as SVG`, from => give(from, standalone(svg), 'figure.svg')),
    button('PNG', `Copy the figure ${label} as PNG`, async from => give(from, await png(svg), 'figure.png')),
  );
  if (points.length) {
    const lines = () => [['series', 'x', 'y'], ...shown().map(one => [one.name, String(one.x), String(one.y)])];
    tools.append(button('CSV', `Copy the numbers of the figure ${label} as CSV`, from => give(from, FORMATS.CSV(lines()), 'figure.csv')));
  }
  markers.push(name => {
    const own = points.filter(one => one.name === name);
    svg.classList.toggle('some', own.some(one => drawn(one.id)));
    for (const one of points) drawn(one.id)?.classList.toggle('marked', one.name === name);
    if (now) return;
    all('.ring', svg).forEach(ring => ring.remove());
    if (own.length < 5) svg.append(...own.map(circle));
  });
}

// The figure as a file of its own, in the page's present colours.
function standalone(svg) {
  const copy = svg.cloneNode(true), colours = getComputedStyle(document.documentElement), { width, height } = svg.viewBox.baseVal;
  all('.ring, .hidden', copy).forEach(gone => gone.remove());
  for (const name of ['data-chart', 'class']) copy.removeAttribute(name);
  set(copy, { width, height, 'stroke-linejoin': 'round', 'font-family': 'sans-serif' });
  copy.prepend(drawing('rect', { width, height, fill: 'var(--card)' }));
  return new XMLSerializer().serializeToString(copy).replace(/var\((--\w+)\)/g, (_, name) => colours.getPropertyValue(name).trim());
}

async function png(svg) {
  const image = new Image(), canvas = make('canvas');
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
  await image.decode();
  [canvas.width, canvas.height] = [image.width * 3, image.height * 3];
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(done => canvas.toBlob(done));
}

// ---- A map of images: the pointer shows one, a click its nearest, a drawn loop lists what is in it

const holder = document.getElementById('map');
if (holder) showMap(JSON.parse(document.getElementById('data').textContent));

function showMap(data) {
  function bytes(text) {
    const signs = atob(text), found = new Uint8Array(signs.length);
    for (let i = 0; i < signs.length; i++) found[i] = signs.charCodeAt(i);
    return found.buffer;
  }
  const { names, classes, labels, side, sheet } = data, sheets = all('#sheets img'), SIZE = 640;
  const numbers = text => text ? text.split('.').map(Number) : [];
  const hidden = new Set(numbers(view.get('kinds'))), picked = new Set(numbers(view.get('list')));
  let listed = new Set();
  let over = -1, chosen = Number(view.get('image') ?? -1), looping = false;
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const kindOf = i => labels[i] < 0 ? '' : classes[labels[i]];

  function paint(context, i, x, y, size) {
    const place = i % sheet ** 2, from = sheets[Math.floor(i / sheet ** 2)];
    context.drawImage(from, place % sheet * side, Math.floor(place / sheet) * side, side, side, x, y, size, size);
  }

  // A disc, square, triangle, rhombus or triangle on its point, as on the charts.
  function shape(context, kind, x, y, r) {
    const number = kind < 0 ? 0 : (kind + Math.floor(kind / data.colours.length)) % 5;
    if (number === 0) { context.moveTo(x + r, y); context.arc(x, y, r, 0, 7); return; }
    const corners = [, [-1, -1, 1, -1, 1, 1, -1, 1], [0, -1.2, 1.2, 1, -1.2, 1], [0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0], [0, 1.2, 1.2, -1, -1.2, -1]][number];
    for (let c = 0; c < corners.length; c += 2) context[c ? 'lineTo' : 'moveTo'](x + r * corners[c], y + r * corners[c + 1]);
    context.closePath();
  }
  const colour = kind => kind < 0 ? css('--accent') : data.colours[kind % data.colours.length];
  const kinds = classes.length ? classes.map((_, kind) => kind) : [-1];

  const maps = data.maps.map((of, number) => {
    const canvas = make('canvas', { width: SIZE, height: SIZE, tabindex: 0, role: 'application' });
    canvas.setAttribute('aria-label', `Map of the images by ${of.title}; arrow keys go from image to image, Enter shows the nearest, space lists the image, plus and minus zoom`);
    const [x, y, scale] = (view.get(`at${number}`) ?? '0.5,0.5,0.92').split(',').map(Number);
    const pairs = flat => flat.flatMap((value, k) => k % 2 ? [] : [[value, flat[k + 1]]]);
    const loops = view.get(`loops${number}`)?.split('_').map(text => pairs(numbers(text))) ?? [];
    const [places, near, like] = [new Uint16Array(bytes(of.places)), new Uint32Array(bytes(of.near)), new Int16Array(bytes(of.like))];
    return { number, title: of.title, canvas, context: canvas.getContext('2d'), places, near, like, x, y, scale, loops, drawing: [], dots: make('canvas', { width: SIZE, height: SIZE }), stale: false };
  });
  const count = maps[0].near.length / names.length;
  // A place of the data, 0 to 65535, on the canvas, and back. Loops are kept as places of the data: they move with it.
  const onCanvas = (map, [x, y]) => [
    (x / 65535 - map.x) * map.scale * SIZE + SIZE / 2,
    (map.y - y / 65535) * map.scale * SIZE + SIZE / 2,
  ];
  const inData = (map, [x, y]) => [
    Math.round(65535 * (map.x + (x - SIZE / 2) / map.scale / SIZE)),
    Math.round(65535 * (map.y - (y - SIZE / 2) / map.scale / SIZE)),
  ];
  const placeOf = (map, i) => [map.places[2 * i], map.places[2 * i + 1]];
  const at = (map, i) => onCanvas(map, placeOf(map, i));
  const nearestOf = (map, i) => Array.from(map.near.subarray(i * count, (i + 1) * count));

  function ring(map, i, r, width) {
    map.context.lineWidth = width;
    map.context.beginPath();
    map.context.arc(...at(map, i), r, 0, 7);
    map.context.stroke();
  }

  // The pixels of a dot, each with its place from the dot's upper left corner: twenty thousand pictures would take a second.
  function stamp(kind, r) {
    const made = make('canvas', { width: 4 * r, height: 4 * r }), context = made.getContext('2d');
    context.beginPath();
    shape(context, kind, 2 * r, 2 * r, r);
    context.fillStyle = colour(kind);
    context.fill();
    const pixels = new Uint32Array(context.getImageData(0, 0, 4 * r, 4 * r).data.buffer);
    return Array.from(pixels, (value, at) => [at % (4 * r) + Math.floor(at / 4 / r) * SIZE, value]).filter(([, value]) => value);
  }

  // All dots of a map, drawn once for each view of it; a picture takes a dot's place where few are in sight.
  function drawDots(map) {
    const context = map.dots.getContext('2d'), shown = [], r = Math.round(Math.max(names.length > 4000 ? 2 : 4, Math.min(7, map.scale * 2)));
    const stamps = new Map([-1, ...kinds].map(kind => [kind, stamp(kind, r)]));
    const image = context.createImageData(SIZE, SIZE), pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < names.length; i++) {
      if (hidden.has(labels[i])) continue;
      const [x, y] = at(map, i).map(value => Math.round(value) - 2 * r);
      if (x < 0 || y < 0 || x > SIZE - 4 * r || y > SIZE - 4 * r) continue;
      shown.push(i);
      for (const [place, value] of stamps.get(labels[i])) pixels[y * SIZE + x + place] = value;
    }
    context.putImageData(image, 0, 0);
    if (shown.length <= 150) {
      for (const i of shown) {
        const [x, y] = at(map, i);
        context.fillStyle = colour(labels[i]);
        context.fillRect(x - 19, y - 19, 38, 38);
        paint(context, i, x - 17, y - 17, 34);
      }
    }
    map.stale = false;
  }

  function draw(map) {
    const { context } = map;
    if (map.stale) drawDots(map);
    context.clearRect(0, 0, SIZE, SIZE);
    context.drawImage(map.dots, 0, 0);
    context.strokeStyle = css('--ink');
    for (const i of listed) ring(map, i, 5, 1.5);
    if (chosen >= 0) for (const i of nearestOf(map, chosen)) ring(map, i, 7, 1.5);
    for (const i of [chosen, over]) if (i >= 0) ring(map, i, 11, 3.5);
    context.lineWidth = 2;
    for (const loop of [...map.loops, map.drawing]) {
      context.beginPath();
      loop.forEach((place, i) => context[i ? 'lineTo' : 'moveTo'](...onCanvas(map, place)));
      context.closePath();
      context.stroke();
    }
    // One finger scrolls the page past a map that is seen whole.
    map.canvas.style.touchAction = looping || map.scale > 1 ? 'none' : 'pan-y';
  }
  function renew() {
    for (const map of maps) map.stale = true;
    redraw();
  }
  let due = false;
  function redraw() {
    if (!due) requestAnimationFrame(() => { due = false; maps.forEach(draw); });
    due = true;
  }

  const big = make('canvas', { width: 110, height: 110, role: 'img' }), named = make('p');
  const rows = make('div'), list = make('div'), legend = make('div', { class: 'kinds', tabindex: 0, role: 'group', 'aria-label': 'Kinds of images' });

  function look(i) {
    over = i;
    const shown = i >= 0 ? i : chosen;
    big.hidden = shown < 0;
    if (shown >= 0) paint(big.getContext('2d'), shown, 0, 0, 110);
    big.setAttribute('aria-label', names[shown] ?? '');
    named.textContent = shown < 0 ? 'Point at an image. Click it for its nearest.' : `${names[shown]} ${kindOf(shown) && `· ${kindOf(shown)}`}`;
    redraw();
  }

  function thumb(i, text) {
    const canvas = make('canvas', { width: 64, height: 64 }), press = button('', `${names[i]} ${text}`, () => choose(i));
    paint(canvas.getContext('2d'), i, 0, 0, 64);
    press.append(canvas);
    press.title = names[i];
    return make('span', { class: 'thumb' }, press, make('small', {}, text));
  }

  function choose(i) {
    chosen = i;
    keep('image', i < 0 ? '' : String(i));
    rows.replaceChildren(...(i < 0 ? [] : maps.map(map => {
      const found = nearestOf(map, i).map((other, k) => thumb(other, (map.like[i * count + k] / 10000).toFixed(2)));
      return make('div', { class: 'thumbs nearest' }, make('b', {}, map.title), ...found);
    })));
    look(i);
  }

  // In the list is what lies in a loop and is in sight, and what was picked by itself; picked once more, it leaves.
  function show() {
    const seen = i => !hidden.has(labels[i]), looped = i => maps.some(map => map.loops.some(loop => within(loop, placeOf(map, i))));
    listed = new Set([...names.keys()].filter(i => (seen(i) && looped(i)) !== picked.has(i)));
    keep('list', [...picked].join('.'));
    for (const map of maps) keep(`loops${map.number}`, map.loops.map(loop => loop.flat().join('.')).join('_'));
    const own = [...listed], shown = own.slice(0, 60).map(i => thumb(i, ''));
    const copy = button('copy as CSV', `Copy the list of ${own.length} files as CSV`, from => {
      give(from, FORMATS.CSV([['image', 'class'], ...own.map(i => [names[i], kindOf(i)])]), 'images.csv');
    });
    const clear = button('clear', 'Clear the list', () => { picked.clear(); maps.forEach(map => { map.loops = []; }); show(); });
    const head = make('div', { class: 'tools listed' }, `${own.length} images in the list`, copy, clear);
    list.replaceChildren(...(own.length ? [head, make('div', { class: 'thumbs' }, ...shown)] : []));
    redraw();
  }

  // Even-odd: a ray from the place to the right crosses the loop an odd number of times.
  function within(loop, [x, y]) {
    let odd = false;
    for (let i = 0, j = loop.length - 1; i < loop.length; j = i++) {
      const [[xi, yi], [xj, yj]] = [loop[i], loop[j]];
      if ((yi > y) !== (yj > y) && x < (xj - xi) * (y - yi) / (yj - yi) + xi) odd = !odd;
    }
    return odd;
  }

  function zoom(map, by, [x, y] = [SIZE / 2, SIZE / 2]) {
    const scale = Math.max(0.5, Math.min(400, map.scale * by)), shift = (1 / map.scale - 1 / scale) / SIZE;
    Object.assign(map, { x: map.x + (x - SIZE / 2) * shift, y: map.y - (y - SIZE / 2) * shift, scale });
    moved(map);
  }
  function moved(map) {
    map.stale = true;
    redraw();
    clearTimeout(map.rests); // Safari lets an address change a hundred times in half a minute
    map.rests = setTimeout(() => keep(`at${map.number}`, [map.x, map.y, map.scale].map(value => value.toPrecision(5)).join(',')), 200);
  }

  for (const map of maps) {
    const { canvas } = map, figure = holder.querySelector(`[data-map="${map.number}"]`);
    const spot = event => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * SIZE / box.width, (event.clientY - box.top) * SIZE / box.height];
    };
    const nearby = ([x, y], reach) => {
      let best = -1, least = reach ** 2;
      for (let i = 0; i < names.length; i++) {
        if (hidden.has(labels[i])) continue;
        const [px, py] = at(map, i), far = (px - x) ** 2 + (py - y) ** 2;
        if (far < least) [best, least] = [i, far];
      }
      return best;
    };
    const reach = event => event.pointerType === 'touch' ? 40 : 18;
    // The pointers that are down, each with its place: one draws or pulls the map, two zoom it about their middle.
    const down = new Map();
    let pulled = false;
    const middle = () => [0, 1].map(axis => [...down.values()].reduce((sum, place) => sum + place[axis], 0) / down.size);
    const span = ([one, two] = [...down.values()]) => two ? Math.hypot(one[0] - two[0], one[1] - two[1]) : 1;
    canvas.addEventListener('pointerdown', event => {
      canvas.setPointerCapture(event.pointerId);
      down.set(event.pointerId, spot(event));
      pulled = down.size > 1;
      map.drawing = looping && !pulled ? [inData(map, spot(event))] : [];
    });
    canvas.addEventListener('pointermove', event => {
      const place = spot(event), before = down.get(event.pointerId);
      if (!before) { look(nearby(place, reach(event))); return; }
      if (!pulled && Math.hypot(place[0] - before[0], place[1] - before[1]) < 6) return;
      pulled = true;
      if (map.drawing.length) { map.drawing.push(inData(map, place)); redraw(); return; }
      const from = middle(), apart = span();
      down.set(event.pointerId, place);
      const to = middle();
      map.x -= (to[0] - from[0]) / map.scale / SIZE;
      map.y += (to[1] - from[1]) / map.scale / SIZE;
      zoom(map, span() / apart, to);
    });
    canvas.addEventListener('pointerup', () => {
      if (map.drawing.length > 2) { // as many corners as an address has room for
        map.loops.push(map.drawing.filter((_, i) => i % Math.ceil(map.drawing.length / 60) === 0));
        show();
      }
    });
    canvas.addEventListener('click', event => { if (!pulled) choose(nearby(spot(event), reach(event))); });
    for (const end of ['pointerup', 'pointercancel']) {
      canvas.addEventListener(end, event => { down.delete(event.pointerId); map.drawing = []; redraw(); });
    }
    canvas.addEventListener('pointerleave', () => { if (!down.size) look(-1); });
    canvas.addEventListener('wheel', event => { event.preventDefault(); zoom(map, 1.0015 ** -event.deltaY, spot(event)); }, { passive: false });
    const towards = ([dx, dy]) => {
      if (over < 0) return chosen >= 0 ? chosen : nearby([SIZE / 2, SIZE / 2], Infinity);
      let best = over, least = Infinity;
      const [x, y] = at(map, over);
      for (let i = 0; i < names.length; i++) {
        const [px, py] = at(map, i), along = (px - x) * dx + (py - y) * dy, across = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
        if (along > across && along + across < least && i !== over && !hidden.has(labels[i])) [best, least] = [i, along + across];
      }
      return best;
    };
    canvas.addEventListener('keydown', event => {
      const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const keys = {
        Enter: () => choose(over), ' ': () => { if (!picked.delete(over) && over >= 0) picked.add(over); show(); },
        '+': () => zoom(map, 1.5, at(map, Math.max(0, over))), '-': () => zoom(map, 1 / 1.5), Escape: () => choose(-1),
      };
      const key = arrows[event.key] ? () => { look(towards(arrows[event.key])); said.textContent = named.textContent; } : keys[event.key];
      if (!key) return;
      event.preventDefault();
      key();
    });
    const loop = button('draw a loop', `Draw a loop on the map by ${map.title}`, () => {
      looping = !looping;
      all('.looping', holder).forEach(press => press.setAttribute('aria-pressed', looping));
      redraw();
    });
    loop.className = 'looping';
    loop.setAttribute('aria-pressed', false);
    const whole = () => { Object.assign(map, { x: 0.5, y: 0.5, scale: 0.92 }); moved(map); };
    figure.querySelector('.still').replaceWith(canvas);
    figure.append(make('div', { class: 'tools' }, button('+', `Zoom in on ${map.title}`, () => zoom(map, 1.5)),
      button('−', `Zoom out of ${map.title}`, () => zoom(map, 1 / 1.5)), button('whole', `All of ${map.title}`, whole), loop));
  }

  for (const kind of kinds.filter(kind => kind >= 0)) {
    const box = make('input', { type: 'checkbox' }), sign = make('canvas', { width: 24, height: 24 }), context = sign.getContext('2d');
    shape(context, kind, 12, 12, 8);
    context.fillStyle = colour(kind);
    context.fill();
    box.checked = !hidden.has(kind);
    box.addEventListener('change', () => { if (box.checked) hidden.delete(kind); else hidden.add(kind); keep('kinds', [...hidden].join('.')); show(); renew(); });
    legend.append(make('label', {}, box, sign, classes[kind]));
  }
  const find = make('input', { type: 'search', placeholder: 'find by name', 'aria-label': 'Find an image by its name' });
  find.addEventListener('input', () => choose(find.value ? names.findIndex(name => name.includes(find.value)) : -1));
  holder.append(make('div', { class: 'tools' }, find), ...(classes.length ? [legend] : []), make('div', { class: 'looked' }, big, named), rows, list);
  for (const of of all('.thumb[data-image]')) {
    const press = button('', `Show the nearest of ${of.firstElementChild.alt}`, () => { choose(Number(of.dataset.image)); holder.scrollIntoView(); });
    press.append(...of.childNodes);
    of.append(press);
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', renew);
  addEventListener('load', () => { choose(chosen); show(); renew(); }); // the sheets are there
  look(-1);
}

// ---- The page of a run that goes on reads itself again, unless it is told not to

const { follow } = document.querySelector('main').dataset;
if (follow) {
  const box = make('input', { type: 'checkbox' });
  box.checked = !view.has('stay');
  box.addEventListener('change', () => keep('stay', box.checked ? '' : '1'));
  document.querySelector('header').append(make('label', { class: 'follow' }, box, `follow the run, every ${follow} s`));
  setInterval(() => { if (box.checked) location.reload(); }, 1000 * follow);
}

// ---- What scrolls is reached by the keyboard
for (const text of all('pre')) text.tabIndex = 0;
