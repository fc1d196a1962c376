// ---- Curves: values of all lines at the pointer, zoom, smoothing, and one bar of controls for all charts

const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3]]; // six lines share a dash pattern, because everybody can distinguish the first six colors
const WHOLE = [...'012345678'].flatMap(zeros => [1, 2, 5].map(step => step * 10 ** zeros)); // possible distances of ticks on an axis of whole numbers
const axesOf = chart => [...new Set(chart.series.flatMap(line => Object.keys(line.x)))];
const curves = all('.curves').map(frame => ({ frame, section: frame.closest('section'), stale: true, ...JSON.parse(frame.dataset.chart) }));
const sets = new Map(); // the names of the lines of each section; in a section, a name has the same color in all charts
for (const { section, series } of curves) sets.set(section, [...new Set([...(sets.get(section) ?? []), ...series.map(line => line.name)])]);
const hidden = new Set(view.getAll('hide')), zooms = new Map();
for (const text of view.getAll('zoom')) {
  const [, from, to, unit] = text.match(/^(\S+) (\S+) (.*)$/) ?? [];
  if (Number(from) < Number(to)) zooms.set(unit, [Number(from), Number(to)]);
}
let chosen = view.get('by'), smoothing = Math.min(0.99, Math.max(0, Number(view.get('smooth')) || 0));
let touched = curves[0], held = {}; // the chart that the zoom buttons change, and the point to select again after a zoom

const unitOf = chart => axesOf(chart).includes(chosen) ? chosen : axesOf(chart)[0];
const isCurve = chart => !chart.dots && !chart.series.some(line => line.low); // only curves can be smoothed, not dots or points with intervals
const place = (chart, name) => sets.get(chart.section).indexOf(name);
const colorOf = (chart, name) => chart.series.length > 1 ? SIGNS.colors[place(chart, name) % SIGNS.colors.length] : css('--accent');
const plain = value => value && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)
  ? value.toExponential(2) : value.toLocaleString('en', { maximumSignificantDigits: 5 });
const along = (chart, x) => chart.ticks.length ? chart.ticks[x] ?? '' : plain(x);
const swatch = color => { const sign = make('i', { class: 'swatch' }); sign.style.background = color; return sign; };

// Return the exponential moving average of the values, with the bias correction of TensorBoard.
function smooth(values) {
  let sum = 0, weight = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = smoothing * sum + (1 - smoothing) * value;
    weight = smoothing * weight + 1 - smoothing;
    return sum / weight;
  });
}

// Return the index nearest to `at` that has a value. Runs may log at different steps, so a line may have gaps.
function nearest(values, at) {
  for (let far = 0; far < values.length; far++) {
    for (const i of [at - far, at + far]) if (values[i] != null) return i;
  }
  return null;
}

function draw(chart) {
  const { frame, series, ticks, normal, level } = chart, log = chart.log.includes('y'), unit = unitOf(chart), width = frame.clientWidth;
  if (!width) return;
  chart.stale = false;
  chart.plot?.destroy();
  frame.querySelector('.still')?.remove();
  const soft = smoothing && isCurve(chart);
  const faint = soft && series.length < 9 ? series : []; // draw the measured values faintly behind the smoothed values
  const tables = [...series.map(line => [line, soft ? smooth(line.y) : line.y]), ...faint.map(line => [line, line.y])];
  const look = ({ name, y }) => ({
    show: !hidden.has(name), stroke: colorOf(chart, name), width: series.length > 20 ? 1 : 1.6,
    dash: DASHES[Math.floor(place(chart, name) / 6) % DASHES.length],
    points: { show: chart.dots || y.filter(value => value !== null).length < 40, size: 6 }, // without marks, a single measurement would be invisible
    ...(chart.dots ? { paths: () => null } : {}),
  });
  const font = '12px system-ui, sans-serif', values = (plot, splits) => splits.map(value => value === null ? '' : plain(value));
  const axis = { stroke: css('--quiet'), grid: { stroke: css('--line'), width: 1 }, ticks: { show: false }, font, values };
  const names = { values: (plot, splits) => splits.map(x => ticks[x] ?? ''), incrs: WHOLE, space: 14 };
  const counted = !chart.log.includes('x') && series.every(line => (line.x[unit] ?? []).every(Number.isInteger));
  if (ticks.length > 8) Object.assign(names, { rotate: -60, size: 100 });
  const reach = (plot, least, most) => { // the axis includes the normal range, except the lower end if the axis is logarithmic
    const room = 0.5 * (most - least) || Infinity, far = series.flatMap(({ low, high }) => low ? [Math.max(Math.min(...low), least - room), Math.min(Math.max(...high), most + room)] : []);
    const ends = [least, most, ...far, log ? null : normal[0], normal[1], level].filter(end => end !== null);
    const outer = [Math.min(...ends), Math.max(...ends)];
    return log ? uPlot.rangeLog(...outer, 10, false) : uPlot.rangeNum(...outer, 0.08, true);
  };
  chart.plot = new uPlot({
    width, height: frame.classList.contains('wide') ? 340 : 210, padding: [10, 24, 0, 0],
    legend: { show: false }, focus: { alpha: 0.3 },
    cursor: {
      y: false, drag: { setScale: false }, points: { size: 8 }, bind: { dblclick: () => () => zoom(unit, null) },
      dataIdx: (plot, line, at) => line && line <= series.length ? nearest(plot.data[line], at) : at,
    },
    scales: {
      x: { time: false, distr: chart.log.includes('x') ? 3 : 1, ...(zooms.has(unit) ? { range: () => zooms.get(unit) } : {}) },
      y: { distr: log ? 3 : 1, range: reach },
    },
    axes: [
      { ...axis, label: unit, labelFont: font, labelSize: 18, size: 28, ...(ticks.length ? names : counted ? { incrs: WHOLE } : {}) },
      { ...axis, size: (plot, texts) => 14 + 7 * Math.max(3, ...(texts ?? []).map(text => text.length)) },
    ],
    series: [{}, ...series.map(look), ...faint.map(line => ({ ...look(line), alpha: 0.25, points: { show: false } }))],
    hooks: {
      drawAxes: [plot => { shade(plot, normal, level); spans(chart, plot); }],
      setCursor: [() => point(chart)],
      setSelect: [plot => {
        const { left, width } = plot.select;
        if (width > 4) zoom(unit, [left, left + width].map(at => plot.posToVal(at, 'x')));
      }],
    },
  }, uPlot.join(tables.map(([line, y]) => [line.x[unit] ?? [], y])), frame);
  if (held.chart === chart) go(chart, held.at, held.name);
}

// Draw the normal range as a band and the reference value as a dotted line.
function shade(plot, [low, high], level) {
  const { ctx, bbox: { left, top, width, height } } = plot, at = value => Math.min(top + height, Math.max(top, plot.valToPos(value, 'y', true)));
  const above = high === null ? top : at(high), below = low === null ? top + height : at(low);
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = css('--accent');
  ctx.setLineDash([3, 3]);
  ctx.beginPath();
  if (level !== null) for (const x of [left, left + width]) ctx.lineTo(x, at(level));
  ctx.stroke();
  ctx.globalAlpha = 0.12;
  if (low !== null || high !== null) ctx.fillRect(left, above, width, below - above);
  ctx.restore();
}

// Draw the intervals as a band along a line or as whiskers.
function spans(chart, plot) {
  const { ctx, bbox: { left, top, width, height } } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  for (const { name, x, low, high } of chart.series.filter(line => line.low && !hidden.has(line.name))) {
    const xs = x[unitOf(chart)].map(value => plot.valToPos(value, 'x', true)), [ups, downs] = [high, low].map(ys => ys.map(value => plot.valToPos(value, 'y', true)));
    ctx.fillStyle = ctx.strokeStyle = colorOf(chart, name);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.globalAlpha = 0.7;
    ctx.beginPath();
    if (xs.length < 40) xs.forEach((at, i) => { ctx.moveTo(at, ups[i]); ctx.lineTo(at, downs[i]); });
    ctx.stroke();
    ctx.globalAlpha = 0.12;
    ctx.beginPath();
    xs.forEach((at, i) => ctx.lineTo(at, ups[i]));
    for (let i = xs.length - 1; i >= 0; i--) ctx.lineTo(xs[i], downs[i]);
    ctx.fill();
  }
  ctx.restore();
}

// Return the visible lines with their values at the cursor, in descending order of the values.
function read({ plot, series }) {
  const lines = series.map(({ name }, i) => ({ name, at: plot.cursor.idxs[i + 1], y: plot.data[i + 1][plot.cursor.idxs[i + 1]] }));
  return lines.filter(({ name, y }) => y != null && !hidden.has(name)).sort((one, two) => two.y - one.y);
}

// Fill the tooltip with the value of each line. The line nearest to the pointer is highlighted in the tooltip, tables and charts.
function point(chart) {
  const { plot, tip, frame } = chart, { left, top, idx } = plot.cursor, lines = left >= 0 && idx != null ? read(chart) : [];
  const xs = plot.data[0], off = ({ y }) => Math.abs(plot.valToPos(y, 'y') - top);
  const wanted = lines.find(line => line.name === chart.wanted && off(line) < 1); // if lines coincide, prefer the line that was chosen by keyboard
  const best = wanted ?? lines.reduce((one, two) => one && off(one) <= off(two) ? one : two, null);
  chart.at = best && { at: xs[best.at], name: best.name };
  tip.replaceChildren();
  if (chart.series.length > 1 && (best || touched === chart)) mark(best?.name ?? null);
  if (!best) return;
  touched = chart;
  const rows = lines.map(({ name, at, y }) => {
    const other = xs[at] === xs[idx] ? '' : ` at ${along(chart, xs[at])}`;
    return make('span', { class: name === best.name ? 'best' : '' }, swatch(colorOf(chart, name)), name && `${name}: `, make('b', {}, plain(y)), other);
  });
  tip.append(make('span', {}, `${smoothing && isCurve(chart) ? 'smoothed, ' : ''}${unitOf(chart)} ${along(chart, xs[idx])}`), ...rows);
  tip.classList.toggle('many', lines.length > 12);
  const { left: edge, top: height } = frame.getBoundingClientRect(), at = plot.over.offsetLeft + left, { offsetWidth: wide, offsetHeight: high } = tip;
  const right = edge + at + 14 + wide < innerWidth ? at + 14 : at - 14 - wide; // the tooltip is next to the pointer and within the window
  tip.style.left = `${Math.max(8 - edge, right)}px`;
  tip.style.top = `${Math.max(8 - height, Math.min(34, innerHeight - height - high - 8))}px`;
}

// Move the cursor to the value of a line at x. Remove the cursor if the line has no value there.
function go(chart, x, name) {
  const { plot, series } = chart, y = plot.data[series.findIndex(line => line.name === name) + 1]?.[plot.data[0].indexOf(x)];
  chart.wanted = name;
  plot.setCursor(y == null ? { left: -10, top: -10 } : { left: plot.valToPos(x, 'x'), top: plot.valToPos(y, 'y') });
}

// The left and right keys move along a line, up and down switch to another line, and plus and minus zoom around the current value.
function walk(chart, key) {
  const { plot, series } = chart, name = chart.at?.name ?? series.find(line => !hidden.has(line.name))?.name;
  const own = plot.data[series.findIndex(line => line.name === name) + 1], { min, max } = plot.scales.x;
  const xs = plot.data[0].filter((x, i) => own[i] != null && x >= min && x <= max), now = xs.indexOf(chart.at?.at);
  const step = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: xs.length }[key], by = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (step !== undefined) go(chart, xs[Math.max(0, Math.min(xs.length - 1, step))], name);
  else if (by && chart.at) {
    const lines = read(chart), next = lines.at((lines.findIndex(line => line.name === name) + by) % lines.length);
    go(chart, plot.data[0][next.at], next.name);
  } else if (key === 'Escape') go(chart);
  else if (key === '+' || key === '-') closer(key === '+' ? 0.5 : 2);
  else return false;
  const best = chart.tip.querySelector('.best');
  said.textContent = best ? `${chart.tip.firstChild.textContent}, ${best.textContent}` : '';
  return true;
}

function zoom(unit, range) {
  if (range) zooms.set(unit, range);
  else zooms.delete(unit);
  keep('zoom', ...[...zooms].map(([name, ends]) => `${ends.map(end => Number(end.toPrecision(6))).join(' ')} ${name}`));
  renew();
}

function closer(by) {
  const { data, scales: { x: { min, max } } } = touched.plot, middle = touched.at?.at ?? (min + max) / 2, half = (max - min) * by / 2;
  held = { chart: touched, ...touched.at };
  zoom(unitOf(touched), 2 * half < data[0].at(-1) - data[0][0] ? [middle - half, middle + half] : null);
}

// Redraw the visible charts now, and each other chart when it scrolls into view.
const inSight = new Set();
let due = false;
function renew() {
  for (const chart of curves) chart.stale = true;
  whole.disabled = !zooms.size;
  if (!due) requestAnimationFrame(() => { due = false; inSight.forEach(draw); });
  due = true;
}

// The bar of controls selects visible lines, the unit of the x axis, smoothing and zoom.
const whole = button('reset zoom', 'Show the whole range', () => { zooms.clear(); zoom(); });
const bar = make('div', { class: 'controls', role: 'group', 'aria-label': 'All curves of this page' });
const isShared = section => curves.some(chart => chart.section === section && chart.series.length > 1); // the section has a chart with several lines
const named = [...sets].map(([section, names]) => [section, names.filter(name => name)]); // the only line of a chart may have no name
const groups = named.filter(([section, names], i, others) => isShared(section) && others.findIndex(([, other]) => `${other}` === `${names}`) === i);
const total = new Set(groups.flatMap(([, names]) => names)).size;
if (total) {
  const count = make('summary'), boxes = [];
  const show = (names, on) => {
    for (const name of names) if (on) hidden.delete(name); else hidden.add(name);
    for (const label of boxes) label.firstChild.checked = !hidden.has(label.title);
    count.textContent = hidden.size ? `${total - hidden.size} of ${total} lines` : `${total} lines`;
    keep('hide', ...hidden);
    renew();
  };
  const lines = groups.flatMap(([section, names]) => {
    const chart = curves.find(chart => chart.section === section && chart.series.length > 1), heading = words(section.querySelector('h2').textContent);
    const own = names.map(name => set(tick(name, true, on => show([name], on), swatch(colorOf(chart, name))), { title: name }));
    for (const label of own) for (const [kind, to] of [['enter', label.title], ['leave', null]]) label.addEventListener(`pointer${kind}`, () => mark(to));
    boxes.push(...own);
    return [groups.length > 1 ? make('b', {}, heading) : '', ...own, ...[['all', true], ['none', false]].map(([text, on]) => {
      return button(text, `Show ${text} of the lines of ${heading}`, () => show(names, on));
    })];
  });
  const fold = make('details', {}, count, make('div', { class: 'lines', tabindex: 0, role: 'group', 'aria-label': 'Lines' }, ...lines));
  fold.open = total < 9 && innerWidth > 700;
  bar.append(fold);
  show([], true);
}
const choices = axesOf(curves.find(chart => axesOf(chart).length > 1) ?? curves[0]);
if (choices.length > 1) {
  const choice = make('select', {}, ...choices.map(unit => make('option', {}, unit)));
  choice.value = chosen = choices.includes(chosen) ? chosen : choices[0];
  choice.addEventListener('change', () => { chosen = choice.value; keep('by', chosen); renew(); });
  bar.append(make('label', {}, 'by ', choice));
}
const slider = make('input', { type: 'range', min: 0, max: 0.99, step: 0.01 });
slider.value = smoothing;
slider.addEventListener('input', () => { smoothing = Number(slider.value); keep('smooth', smoothing ? String(smoothing) : ''); renew(); });
if (curves.some(isCurve)) bar.append(make('label', {}, 'smoothing ', slider));
bar.append(button('+', 'Zoom in', () => closer(0.5)), button('−', 'Zoom out', () => closer(2)), whole);
const folded = curves[0].frame.closest('.part'); // the folded part that contains the charts, if any
if (folded) folded.querySelector('summary').after(bar);
else document.querySelector('main').insertBefore(bar, curves[0].section);

for (const chart of curves) {
  const { frame, title, series } = chart, shown = () => series.filter(({ name }) => !hidden.has(name));
  chart.tip = make('output', { class: 'tip' });
  const rows = () => shown().flatMap(({ name, x, y }) => y.map((value, i) => [name || title, along(chart, x[unitOf(chart)][i]), `${value ?? ''}`]));
  const numbers = () => [['line', unitOf(chart), title], ...rows()];
  const drawn = write => () => { if (chart.stale) draw(chart); return write(shapes(chart, shown())); };
  frame.prepend(make('div', { class: 'head' }, frame.firstChild, menu(title, {
    SVG: drawn(asSvg), PDF: drawn(asPdf), PNG: drawn(asPng),
    ...Object.fromEntries(Object.entries(FORMATS).map(([kind, write]) => [kind, () => write(numbers())])),
  })));
  frame.append(chart.tip);
  if (frame.classList.contains('wide') && series.length > 1 && series.length <= 12) frame.append(make('div', { class: 'names' }, ...series.map(({ name }) => {
    const sign = swatch(colorOf(chart, name));
    if (place(chart, name) >= 6) Object.assign(sign.style, { border: `2px dotted ${sign.style.background}`, background: 'none' }); // the line of this name is dashed
    return make('span', {}, sign, name);
  })));
  set(frame, { tabindex: 0, role: 'group', 'aria-label': `${title}; the arrow keys read its values` });
  frame.addEventListener('keydown', event => { if (event.target === frame && walk(chart, event.key)) event.preventDefault(); });
  markers.push(name => {
    const line = series.findIndex(line => line.name === name);
    if (chart.plot && series.length > 1) chart.plot.setSeries(line < 0 ? null : line + 1, { focus: true });
  });
}

// ---- Downloads of charts on white, as SVG, PDF or PNG

// Return the shapes of a chart, each as [kind, color, ...]. Coordinates are in points from the upper left corner.
function shapes({ plot, title, series, ticks, ...chart }, shown) {
  const ratio = devicePixelRatio, box = Object.fromEntries(Object.entries(plot.bbox).map(([side, value]) => [side, value / ratio]));
  const at = (value, axis) => plot.valToPos(value, axis, true) / ratio + (axis === 'y' ? 24 : 0), all = { series, ticks, ...chart };
  const items = [['text', '#1a2233', 0, 14, title]], bottom = 24 + box.top + box.height, names = series.length > 1 ? shown : [];
  for (const [axis, { _splits = [], _values = [] }] of [['x', plot.axes[0]], ['y', plot.axes[1]]]) {
    _splits.forEach((split, i) => {
      if (split === null || !_values[i]) return;
      const place = at(split, axis);
      items.push(['line', '#dddddd', 0.6, [], axis === 'x' ? [[place, 24 + box.top], [place, bottom]] : [[box.left, place], [box.left + box.width, place]]]);
      items.push(['text', '#555555', axis === 'x' ? place - 3 * _values[i].length : 4, axis === 'x' ? bottom + 14 : place + 4, _values[i]]);
    });
  }
  items.push(['text', '#555555', box.left + box.width / 2 - 20, bottom + 28, unitOf({ series, ...chart })]);
  for (const line of shown) {
    const index = series.indexOf(line), color = colorOf(all, line.name), dash = DASHES[Math.floor(place(all, line.name) / 6) % DASHES.length];
    const points = plot.data[0].map((x, i) => [x, plot.data[index + 1][i]]).filter(([, y]) => y != null).map(([x, y]) => [at(x, 'x'), at(y, 'y')]);
    if (!chart.dots) items.push(['line', color, 1.6, dash, points]);
    if (chart.dots || points.length < 40) for (const [x, y] of points) items.push(['dot', color, x, y]);
    if (line.low) line.x[unitOf(all)].forEach((x, i) => items.push(['line', color, 1, [], [line.low, line.high].map(ys => [at(x, 'x'), at(ys[i], 'y')])]));
  }
  names.forEach(({ name }, i) => items.push(['line', colorOf(all, name), 3, [], [[0, bottom + 42 + 16 * i], [14, bottom + 42 + 16 * i]]], ['text', '#1a2233', 20, bottom + 46 + 16 * i, name]));
  return { width: plot.width, height: bottom + 40 + 16 * names.length, items };
}

const xml = text => text.replace(/[&<>"]/g, sign => `&#${sign.charCodeAt(0)};`);
function asSvg({ width, height, items }) {
  const draw = {
    text: (color, x, y, text) => `<text x="${x}" y="${y}" fill="${color}">${xml(text)}</text>`,
    dot: (color, x, y) => `<circle cx="${x}" cy="${y}" r="3" fill="${color}"/>`,
    line: (color, wide, dash, points) => `<polyline points="${points.map(point => point.map(value => value.toFixed(2))).join(' ')}" stroke="${color}" stroke-width="${wide}" stroke-dasharray="${dash}"/>`,
  };
  const body = items.map(([kind, ...values]) => draw[kind](...values)).join('\n');
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="none"><rect width="100%" height="100%" fill="#ffffff"/>\n${body}</svg>\n`;
}

function asPdf({ width, height, items }) {
  const rgb = color => color.match(/\w\w/g).map(part => (parseInt(part, 16) / 255).toFixed(3)).join(' '), up = y => (height - y).toFixed(2);
  const latin = text => [...text].map(sign => sign === '−' ? '-' : sign.charCodeAt(0) < 256 ? sign : '?').join('').replace(/[\\()]/g, '\\$&');
  const draw = {
    text: (color, x, y, text) => `${rgb(color)} rg BT /F 12 Tf ${x.toFixed(2)} ${up(y)} Td (${latin(text)}) Tj ET`,
    dot: (color, x, y) => `${rgb(color)} RG 6 w [] 0 d 1 J ${x.toFixed(2)} ${up(y)} m ${x.toFixed(2)} ${up(y)} l S 0 J`,
    line: (color, wide, dash, points) => `${rgb(color)} RG ${wide} w [${dash.join(' ')}] 0 d ${points.map(([x, y], i) => `${x.toFixed(2)} ${up(y)} ${i ? 'l' : 'm'}`).join(' ')} S`,
  };
  const content = items.map(([kind, ...values]) => draw[kind](...values)).join('\n');
  const objects = [
    '<</Type/Catalog/Pages 2 0 R>>', '<</Type/Pages/Kids[3 0 R]/Count 1>>',
    `<</Type/Page/Parent 2 0 R/MediaBox[0 0 ${width} ${height}]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>`,
    `<</Length ${content.length}>>\nstream\n${content}\nendstream`, '<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>',
  ];
  let text = '%PDF-1.4\n';
  const places = objects.map((object, i) => { const start = text.length; text += `${i + 1} 0 obj\n${object}\nendobj\n`; return start; });
  const table = places.map(start => `${String(start).padStart(10, '0')} 00000 n \n`).join('');
  text += `xref\n0 ${places.length + 1}\n0000000000 65535 f \n${table}trailer\n<</Size ${places.length + 1}/Root 1 0 R>>\nstartxref\n${text.length}\n%%EOF`;
  return new Blob([Uint8Array.from(text, sign => sign.charCodeAt(0))]);
}

async function asPng(drawn) {
  const image = Object.assign(new Image(), { src: `data:image/svg+xml,${encodeURIComponent(asSvg(drawn))}` });
  await image.decode();
  const canvas = make('canvas', { width: 3 * drawn.width, height: 3 * drawn.height });
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(done => canvas.toBlob(done));
}

const watcher = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) {
    const chart = curves.find(({ frame }) => frame === target);
    if (isIntersecting) inSight.add(chart); else inSight.delete(chart);
    if (isIntersecting && chart.stale) draw(chart);
  }
}, { rootMargin: '400px' });
const sizes = new ResizeObserver(entries => {
  for (const { target } of entries) {
    const { plot, frame } = curves.find(({ frame }) => frame === target);
    if (plot && frame.clientWidth) plot.setSize({ width: frame.clientWidth, height: plot.height });
  }
});
for (const { frame } of curves) { watcher.observe(frame); sizes.observe(frame); }
// If the color scheme changes or the page is printed, redraw the charts in other colors.
for (const query of ['(prefers-color-scheme: dark)', 'print']) {
  matchMedia(query).addEventListener('change', () => curves.filter(({ plot }) => plot).forEach(draw));
}
addEventListener('beforeprint', () => curves.forEach(draw));
