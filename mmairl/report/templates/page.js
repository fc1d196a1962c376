// Interactions that all pages share. Without scripts, pages still show all of their content.

const SIGNS = JSON.parse(document.body.dataset.signs); // colors of series, and characters to escape in Markdown and LaTeX
const all = (css, within = document) => [...within.querySelectorAll(css)];
const words = text => text.replace(/\s+/g, ' ').trim();
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

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

function tick(label, checked, change, ...signs) {
  const box = make('input', { type: 'checkbox' });
  box.checked = checked;
  box.addEventListener('change', () => change(box.checked));
  return make('label', {}, box, ...signs, label);
}

// ---- The address of a page stores the state of tables and charts after a question mark, so that a link restores the state.
// Example: #row-1?sort0=2d&rows0=byol

const view = new URLSearchParams(location.hash.split('?')[1]);

function keep(key, ...values) {
  view.delete(key);
  for (const value of values.filter(value => value !== '')) view.append(key, value);
  const place = location.hash.split('?')[0] || '#';
  history.replaceState(null, '', place + (String(view) ? `?${view}` : ''));
}

// Open the folded parts that contain the target of a link, and scroll to the target.
function unfold() {
  const target = document.getElementById(location.hash.slice(1).split('?')[0]);
  for (let e = target; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true;
  if (target) target.scrollIntoView();
}
addEventListener('hashchange', () => { unfold(); keep(); });

for (const [i, fold] of all('details:not(.menu)').entries()) {
  const usual = fold.open;
  if (view.has(`open${i}`)) fold.open = !usual;
  fold.addEventListener('toggle', () => keep(`open${i}`, fold.open === usual ? '' : '1'));
}

// The header of a long page lists the sections.
const parts = all('section > h2:not(.said)');
if (parts.length > 3) {
  const links = parts.map((part, i) => { part.id ||= `part-${i}`; return make('a', { href: `#${part.id}` }, words(part.textContent)); });
  document.querySelector('header').append(make('nav', { 'aria-label': 'On this page' }, ...links));
}
unfold();

// ---- Downloads: one menu per table or figure

const said = document.body.appendChild(make('output', { class: 'said' }));
function give(from, content, file) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content]));
  make('a', { href: url, download: file }).click();
  from.dataset.done = said.textContent = 'saved';
  setTimeout(() => { delete from.dataset.done; said.textContent = ''; }, 1500);
}

// Return a download menu. `formats` maps each file format to a function that returns the content of the file.
const ENDINGS = { Markdown: 'md', LaTeX: 'tex' };
function menu(name, formats) {
  const entries = Object.entries(formats).map(([kind, content]) => {
    const file = `${name.replace(/\W+/g, '_').slice(0, 80)}.${ENDINGS[kind] ?? kind.toLowerCase()}`;
    return button(kind, `Download ${name} as ${kind}`, async from => give(from, await content(), file));
  });
  return make('details', { class: 'menu' }, make('summary', { 'aria-label': `Download ${name}` }, 'Download'), make('div', {}, ...entries));
}
const shut = target => all('.menu[open]').forEach(open => { if (!open.contains(target)) open.open = false; });
addEventListener('click', event => shut(event.target));
addEventListener('keydown', event => { if (event.key === 'Escape') shut(null); });

const escaped = (text, signs) => [...text].map(sign => signs[sign] ?? sign).join('');
const csvCell = text => {
  text = text.replace(/^−(?=\d)/, '-');
  if (/^[=+@-]/.test(text) && isNaN(text)) text = `'${text}`; // the quote keeps a spreadsheet from reading a name as a formula
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const FORMATS = {
  CSV: lines => lines.map(line => line.map(csvCell).join(',') + '\r\n').join(''),
  Markdown: ([head, ...lines]) => [head, head.map(() => '---'), ...lines]
    .map((line, i) => `| ${line.map(cell => i === 1 ? cell : escaped(cell, SIGNS.markdown)).join(' | ')} |\n`).join(''),
  LaTeX: ([head, ...lines]) => {
    const [top, ...rest] = [head, ...lines].map(line => `${line.map(cell => escaped(cell, SIGNS.latex)).join(' & ')} \\\\\n`);
    return `\\begin{tabular}{l${'r'.repeat(head.length - 1)}}\n\\toprule\n${top}\\midrule\n${rest.join('')}\\bottomrule\n\\end{tabular}\n`;
  },
};

// ---- The row under the pointer is marked in all tables and charts of the page

const markers = [];
const mark = name => markers.forEach(show => show(name));

// ---- Tables: sorting by a column, filtering by text, download

const UNITS = { min: 60, h: 3600, kFLOP: 1e3, MFLOP: 1e6, GFLOP: 1e9, TFLOP: 1e12, PFLOP: 1e15, EFLOP: 1e18, ZFLOP: 1e21 };

// Return the value by which to sort a cell: a number in its base unit, otherwise the text, or null if the cell is blank. Blank cells
// are last in ascending and in descending order.
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

for (const [i, table] of all('.scroll > table').entries()) {
  const rows = [...table.tBodies[0].rows], heads = [...[...table.tHead.rows].at(-1).cells], frame = table.closest('.scroll');
  const nameOf = row => words((row.querySelector('th a') ?? row.querySelector('th'))?.textContent ?? '');
  const seen = () => [...table.tBodies[0].rows].filter(row => !row.hidden);
  const cells = row => [...row.cells].map(cell => words(cell.innerText));
  let sorted = view.get(`sort${i}`) ?? '';

  function show() {
    const column = parseInt(sorted), sign = sorted.endsWith('d') ? -1 : 1;
    const order = rows.map(row => [worth(row.cells[column]), row]);
    if (sorted) order.sort((one, two) => inOrder(one[0], two[0], sign));
    table.tBodies[0].append(...order.map(([, row]) => row));
    heads.forEach((head, c) => head.setAttribute('aria-sort', c !== column ? 'none' : sign < 0 ? 'descending' : 'ascending'));
    const wanted = filter.value.toLowerCase();
    for (const row of rows) row.hidden = !words(row.innerText || row.textContent).toLowerCase().includes(wanted);
    count.textContent = wanted ? `${seen().length} of ${rows.length} rows` : '';
    keep(`sort${i}`, sorted);
    keep(`rows${i}`, filter.value);
  }

  const count = make('output'), filter = make('input', { type: 'search', placeholder: 'Filter', 'aria-label': `Show the rows of table ${i + 1} that contain this text` });
  filter.value = view.get(`rows${i}`) ?? '';
  filter.addEventListener('input', show);
  const title = frame.getAttribute('aria-label') ?? `table ${i + 1}`;
  const lines = () => [heads.map(head => words(head.innerText)), ...seen().map(cells)];
  const formats = Object.entries(FORMATS).map(([kind, write]) => [kind, () => write(lines())]);
  frame.before(make('div', { class: 'tools' }, ...(rows.length > 3 ? [filter, count] : []), menu(title, Object.fromEntries(formats))));
  if (rows.length > 20) { // this link lets keyboard users skip the links in a long table
    frame.before(make('a', { class: 'skip', href: `#past-${i}` }, `skip table ${i + 1}`));
    frame.after(make('span', { id: `past-${i}`, tabindex: -1 }));
  }
  if (rows.length > 1) {
    heads.forEach((head, column) => {
      const inner = [...head.childNodes], press = button('', `Sort by ${words(head.textContent)}`, () => {
        sorted = { [`${column}d`]: `${column}a`, [`${column}a`]: '' }[sorted] ?? `${column}d`;
        show();
      });
      press.append(...inner);
      head.append(press);
    });
  }

  // The up and down keys mark the previous or the next row.
  let at = -1;
  const step = by => {
    const row = seen()[at = Math.max(0, Math.min(seen().length - 1, at + by))];
    if (!row) return;
    row.scrollIntoView({ block: 'nearest' });
    mark(nameOf(row));
    said.textContent = cells(row).join(', ');
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

for (const text of all('pre')) text.tabIndex = 0; // a focusable element can be scrolled by keyboard
