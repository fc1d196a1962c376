// ---- A map of images. Pointing at a dot shows its image, and a click shows the nearest images. A click on a cell of the image shows
// the nearest cells of other images. Users list images by a search or by drawing a loop on the map.

showMap(JSON.parse(document.getElementById('data').textContent));

function showMap(data) {
  const { names, classes, labels, side, sheet, count } = data, SIZE = 960, MORE = 60;
  const holder = document.getElementById('map'), numbers = new Map(names.map((name, i) => [name, i]));
  const bytes = text => Uint8Array.from(atob(text), sign => sign.charCodeAt(0)).buffer;
  const unpacked = packed => ({ ...packed, near: new Uint32Array(bytes(packed.near)), far: new Float32Array(bytes(packed.far)) });
  const cells = data.cells && unpacked(data.cells), each = cells && cells.rows * cells.columns;
  const kindOf = i => labels[i] < 0 ? '' : classes[labels[i]];
  const kinds = classes.length ? [...classes.keys()] : [-1];

  // A link refers to images by name. Positions and loops in a link are valid for the same map only.
  const same = (view.get('of') ?? data.key) === data.key, gone = [...view.getAll('image'), ...view.getAll('pick')].filter(name => !numbers.has(name));
  const known = key => view.getAll(key).filter(name => numbers.has(name)).map(name => numbers.get(name));
  const here = (key, value) => { keep('of', data.key); keep(key, value); };
  const hidden = new Set(view.getAll('hide').map(name => classes.indexOf(name))), picked = new Set(known('pick'));
  let listed = new Set(), over = -1, chosen = known('image')[0] ?? -1, cell = same ? Number(view.get('cell') ?? -1) : -1, looping = false;

  // ---- The small picture of an image is a part of a sheet of many pictures

  const sheets = all('#sheets image').map(image => Object.assign(new Image(), { src: image.getAttribute('href') }));
  function paint(context, i, x, y, size) {
    const place = i % sheet ** 2;
    context.drawImage(sheets[Math.floor(i / sheet ** 2)], place % sheet * side, Math.floor(place / sheet) * side, side, side, x, y, size, size);
  }
  function picture(i, part = -1) {
    const [svg, use, frame] = ['svg', 'use', 'path'].map(tag => document.createElementNS('http://www.w3.org/2000/svg', tag));
    set(use, { href: `#sheet-${Math.floor(i / sheet ** 2)}` });
    svg.append(use, frame);
    return framed(set(svg, { viewBox: `${i % sheet} ${Math.floor(i / sheet) % sheet} 1 1`, 'aria-hidden': true }), part);
  }
  function framed(svg, part) { // dims everything except the cell
    const { rows, columns } = cells ?? {}, [x, y] = svg.getAttribute('viewBox').split(' ').map(Number);
    const corner = `${x + part % columns / columns} ${y + Math.floor(part / columns) / rows}`;
    set(svg.lastChild, { d: part < 0 ? '' : `M${x} ${y}h1v1h-1zM${corner}h${1 / columns}v${1 / rows}h${-1 / columns}z` });
    return svg;
  }
  function thumb(i, text, part) {
    const press = button('', `${names[i]} ${text}: show the nearest images`, () => choose(i, part));
    press.append(picture(i, part), make('small', {}, text));
    return set(press, { class: 'thumb', title: names[i] });
  }

  // ---- Dots: each class has a color and a shape (disc, square, triangle, rhombus or inverted triangle), as in charts

  const color = kind => kind < 0 ? css('--accent') : SIGNS.colors[kind % SIGNS.colors.length];
  function stamp(kind, r) {
    const made = make('canvas', { width: 4 * r, height: 4 * r }), context = made.getContext('2d');
    const number = kind < 0 ? 0 : (kind + Math.floor(kind / SIGNS.colors.length)) % 5;
    const corners = [, [-1, -1, 1, -1, 1, 1, -1, 1], [0, -1.2, 1.2, 1, -1.2, 1], [0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0], [0, 1.2, 1.2, -1, -1.2, -1]][number];
    context.fillStyle = color(kind);
    context.translate(2 * r, 2 * r);
    context.beginPath();
    if (!corners) context.arc(0, 0, r, 0, 7);
    else for (let c = 0; c < corners.length; c += 2) context.lineTo(r * corners[c], r * corners[c + 1]);
    context.fill();
    return made;
  }

  // ---- Maps: the coordinates of images and of the corners of loops are integers from 0 to 65535

  const maps = data.maps.map((map, number) => {
    const canvas = make('canvas', { width: SIZE, height: SIZE, tabindex: 0, role: 'application' });
    canvas.setAttribute('aria-label', `Map of the images by ${map.title}; arrow keys go from image to image, Enter shows the nearest images, space adds the image to the list, plus and minus zoom`);
    const [x, y, scale] = (same && view.get(`at${number}`) || '0.5,0.5,0.92').split(',').map(Number);
    const loops = (same && view.get(`loops${number}`) || '').split('_').filter(Boolean).map(text => {
      return text.split('.').map(Number).flatMap((value, k, flat) => k % 2 ? [] : [[value, flat[k + 1]]]);
    });
    const figure = holder.querySelector(`[data-map="${number}"]`);
    figure.querySelector('.still').replaceWith(canvas);
    return {
      ...unpacked(map), number, figure, canvas, x, y, scale, loops, drawing: [], context: canvas.getContext('2d'), dots: make('canvas', { width: SIZE, height: SIZE }),
      places: new Uint16Array(bytes(map.places)),
    };
  });
  const onCanvas = (map, [x, y]) => [(x / 65535 - map.x) * map.scale * SIZE + SIZE / 2, (map.y - y / 65535) * map.scale * SIZE + SIZE / 2];
  const inData = (map, [x, y]) => [map.x + (x - SIZE / 2) / map.scale / SIZE, map.y - (y - SIZE / 2) / map.scale / SIZE].map(value => Math.round(65535 * value));
  const placeOf = (map, i) => [map.places[2 * i], map.places[2 * i + 1]];
  const at = (map, i) => onCanvas(map, placeOf(map, i));
  const nearestOf = (map, i) => Array.from(map.near.subarray(i * count, (i + 1) * count));

  // Draw all dots of a map on a hidden canvas, once for each position and zoom. If few images are visible, draw their pictures, too.
  let stamps = new Map(), ready = 0;
  function drawDots(map, r) {
    const context = map.dots.getContext('2d'), shown = [];
    if (stamps.get('r') !== r) stamps = new Map([['r', r], ...[-1, ...kinds].map(kind => [kind, stamp(kind, r)])]);
    context.clearRect(0, 0, SIZE, SIZE);
    for (let i = 0; i < names.length; i++) {
      const [x, y] = at(map, i);
      if (hidden.has(labels[i]) || x < 0 || y < 0 || x > SIZE || y > SIZE) continue;
      shown.push(i);
      context.drawImage(stamps.get(labels[i]), Math.round(x) - 2 * r, Math.round(y) - 2 * r);
    }
    for (const i of shown.length > 150 ? [] : shown) {
      const [x, y] = at(map, i);
      context.fillStyle = color(labels[i]);
      context.fillRect(x - 27, y - 27, 54, 54);
      paint(context, i, x - 24, y - 24, 48);
    }
  }

  function draw(map) {
    if (map.figure.hidden) return;
    const { context } = map, r = Math.round(Math.max(names.length > 4000 ? 3 : 6, Math.min(10, map.scale * 3)));
    const now = [map.x, map.y, map.scale, css('--accent'), ready, ...hidden].join();
    if (map.drawn !== now) drawDots(map, r);
    map.drawn = now;
    context.clearRect(0, 0, SIZE, SIZE);
    context.drawImage(map.dots, 0, 0);
    context.strokeStyle = css('--ink');
    const ring = (i, size, width) => { context.lineWidth = width; context.beginPath(); context.arc(...at(map, i), size, 0, 7); context.stroke(); };
    for (const i of listed) ring(i, 8, 2);
    if (chosen >= 0) for (const i of nearestOf(map, chosen)) ring(i, 11, 2);
    for (const i of [chosen, over]) if (i >= 0) ring(i, 16, 5);
    context.lineWidth = 3;
    for (const loop of [...map.loops, map.drawing]) {
      context.beginPath();
      for (const place of loop) context.lineTo(...onCanvas(map, place));
      context.closePath();
      context.stroke();
    }
    map.canvas.style.touchAction = looping || map.scale > 1 ? 'none' : 'pan-y'; // while the whole map is visible, a swipe with one finger scrolls the page
  }
  let due = false;
  function redraw() {
    if (!due) requestAnimationFrame(() => { due = false; maps.forEach(draw); });
    due = true;
  }

  function zoom(map, by, [x, y] = [SIZE / 2, SIZE / 2]) {
    const scale = Math.max(0.5, Math.min(400, map.scale * by)), shift = (1 / map.scale - 1 / scale) / SIZE;
    move(map, map.x + (x - SIZE / 2) * shift, map.y - (y - SIZE / 2) * shift, scale);
  }
  function move(map, x, y, scale) {
    Object.assign(map, { x, y, scale });
    redraw();
    clearTimeout(map.rests); // wait, because Safari allows only 100 changes of the address in 30 seconds
    map.rests = setTimeout(() => here(`at${map.number}`, [x, y, scale].map(value => value.toPrecision(5)).join(',')), 200);
  }

  // ---- The panel next to the map: the image under the pointer, the nearest images of the selected one, and lists

  const big = make('div', { class: 'big' }), named = make('p'), parts = make('div'), rows = make('div'), hits = make('div'), list = make('div');
  function look(i) {
    over = i;
    const shown = i >= 0 ? i : chosen, has = shown === chosen && cells?.of.includes(shown);
    big.classList.toggle('cut', Boolean(has));
    big.replaceChildren(...(shown < 0 ? [] : [has ? cut(shown) : picture(shown)]));
    named.textContent = shown < 0 ? 'Point at an image, or click it to see the nearest images.' : `${names[shown]} ${kindOf(shown) && `· ${kindOf(shown)}`} ${has ? '· Click a cell to see the nearest cells.' : ''}`;
    redraw();
  }
  const apart = distance => distance < data.same ? 'same' : distance.toPrecision(2);
  const nearest = (title, found) => make('div', { class: 'nearest' }, make('h3', {}, title, make('small', {}, 'rank · cosine distance')), make('div', { class: 'thumbs' }, ...found));
  function choose(i, part = i === chosen ? cell : -1) {
    chosen = i;
    keep('image', i < 0 ? '' : names[i]);
    rows.replaceChildren(...(i < 0 ? [] : [maps[shown], ...maps.filter(map => map.number !== shown)].map(map => {
      return nearest(`Nearest by ${map.title}`, nearestOf(map, i).map((other, k) => thumb(other, `${k + 1} · ${apart(map.far[i * count + k])}`)));
    })));
    chooseCell(i, part);
    look(i);
  }

  // The picture of the selected image accepts clicks and arrow keys on its cells.
  function chooseCell(i, part) {
    const first = cells ? cells.of.indexOf(i) * each + part : -1;
    cell = first >= 0 && part >= 0 && part < each ? part : -1;
    (cell < 0 ? keep : here)('cell', cell < 0 ? '' : String(cell));
    parts.replaceChildren(...(cell < 0 ? [] : [nearest('Nearest cells', [...Array(cells.count).keys()].map(k => {
      const at = first * cells.count + k;
      return thumb(cells.of[Math.floor(cells.near[at] / each)], `${k + 1} · ${apart(cells.far[at])}`, cells.near[at] % each);
    }))]));
  }
  function cut(i) {
    const { rows, columns } = cells, svg = set(picture(i, cell), { tabindex: 0, role: 'application', 'aria-hidden': false });
    set(svg, { 'aria-label': `${names[i]} in ${rows} × ${columns} cells; arrow keys go from cell to cell and show the nearest cells` });
    const go = (row, column) => {
      chooseCell(i, Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column)));
      framed(svg, cell);
    };
    svg.addEventListener('click', event => {
      const box = svg.getBoundingClientRect();
      go(Math.floor((event.clientY - box.top) / box.height * rows), Math.floor((event.clientX - box.left) / box.width * columns));
    });
    svg.addEventListener('keydown', event => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      go(Math.floor(Math.max(0, cell) / columns) + step[0], Math.max(0, cell) % columns + step[1]);
    });
    return svg;
  }

  function tell(into, title, images, ...more) {
    const thumbs = make('div', { class: 'thumbs' }), rest = button('', `Show more of ${title}`, () => add());
    let shown = 0;
    function add() {
      thumbs.append(...images.slice(shown, shown += MORE).map(i => thumb(i, names[i].split('/').at(-1))));
      rest.textContent = `${images.length - shown} more`;
      rest.hidden = shown >= images.length;
    }
    const copy = button('copy as CSV', `Copy ${title} as CSV`, from => {
      give(from, FORMATS.CSV([['image', 'class'], ...images.map(i => [names[i], kindOf(i)])]), 'images.csv');
    });
    into.replaceChildren(make('div', { class: 'tools listed' }, make('b', {}, title), ...(images.length ? [copy] : []), ...more), thumbs, rest);
    add();
  }
  function search(text) {
    keep('find', text);
    const wanted = text.toLowerCase(), found = [...names.keys()].filter(i => names[i].toLowerCase().includes(wanted));
    if (text) tell(hits, `${found.length || 'No'} image${found.length === 1 ? '' : 's'} with “${text}” in the name`, found);
    else hits.replaceChildren();
  }
  // The list contains the visible images inside loops, and images that were picked one by one. Picking an image again removes it.
  function show() {
    const inLoop = i => maps.some(map => map.loops.some(loop => within(loop, placeOf(map, i))));
    listed = new Set([...names.keys()].filter(i => (!hidden.has(labels[i]) && inLoop(i)) !== picked.has(i)));
    keep('pick', ...[...picked].map(i => names[i]));
    for (const map of maps) (map.loops.length ? here : keep)(`loops${map.number}`, map.loops.map(loop => loop.flat().join('.')).join('_'));
    const clear = button('clear', 'Clear the list', () => { picked.clear(); maps.forEach(map => { map.loops = []; }); show(); });
    if (listed.size) tell(list, `${listed.size} images in the list`, [...listed], clear);
    else list.replaceChildren();
    redraw();
  }
  // Return whether a point is inside a loop. If it is, a ray from the point to the right crosses the loop an odd number of times.
  function within(loop, [x, y]) {
    let odd = false;
    for (let i = 0, j = loop.length - 1; i < loop.length; j = i++) {
      const [[xi, yi], [xj, yj]] = [loop[i], loop[j]];
      if ((yi > y) !== (yj > y) && x < (xj - xi) * (y - yi) / (yj - yi) + xi) odd = !odd;
    }
    return odd;
  }

  // ---- Pointers and keys

  for (const map of maps) {
    const { canvas } = map;
    const spot = event => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) * SIZE / box.width, (event.clientY - box.top) * SIZE / box.height];
    };
    const nearby = ([x, y], reach) => {
      let best = -1, least = reach ** 2;
      for (let i = 0; i < names.length; i++) {
        const [px, py] = at(map, i), far = (px - x) ** 2 + (py - y) ** 2;
        if (far < least && !hidden.has(labels[i])) [best, least] = [i, far];
      }
      return best;
    };
    const reach = event => (event.pointerType === 'touch' ? 24 : 14) * SIZE / canvas.clientWidth;
    // The pressed pointers and their positions. One pointer draws a loop or drags the map, and two pointers zoom around their center.
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
      const from = middle(), wide = span();
      down.set(event.pointerId, place);
      const to = middle();
      map.x -= (to[0] - from[0]) / map.scale / SIZE;
      map.y += (to[1] - from[1]) / map.scale / SIZE;
      zoom(map, span() / wide, to);
    });
    canvas.addEventListener('pointerup', () => {
      if (map.drawing.length > 2) { // keep only as many corners as fit into an address
        map.loops.push(map.drawing.filter((_, i) => i % Math.ceil(map.drawing.length / 60) === 0));
        show();
      }
    });
    canvas.addEventListener('click', event => { if (!pulled) choose(nearby(spot(event), reach(event))); });
    for (const end of ['pointerup', 'pointercancel']) {
      canvas.addEventListener(end, event => { down.delete(event.pointerId); map.drawing = []; redraw(); });
    }
    canvas.addEventListener('pointerleave', () => { if (!down.size) look(-1); });
    canvas.addEventListener('wheel', event => { // the wheel zooms the map only if the map has the focus; otherwise the wheel scrolls the page
      if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(map, 1.0015 ** -event.deltaY, spot(event));
    }, { passive: false });
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
      const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      const keys = {
        Enter: () => choose(over), ' ': () => { if (!picked.delete(over) && over >= 0) picked.add(over); show(); },
        '+': () => zoom(map, 1.5, at(map, Math.max(0, over))), '-': () => zoom(map, 1 / 1.5), Escape: () => choose(-1),
      };
      const key = arrow ? () => { look(towards(arrow)); said.textContent = named.textContent; } : keys[event.key];
      if (!key) return;
      event.preventDefault();
      key();
    });
  }

  // ---- The bar of controls: choice of the map, zoom, loops, search, and visible classes

  let shown = Math.min(maps.length - 1, Number(view.get('map') ?? maps.length - 1)), beside = view.has('beside');
  const pick = map => { shown = map.number; beside = false; arrange(); };
  const switches = maps.map(map => button(map.title, `Show the map by ${map.title}`, () => pick(map)));
  const both = button('side by side', 'Show all maps side by side', () => { beside = !beside; arrange(); });
  const loop = button('draw a loop', 'Draw a loop on a map to list the images in it', () => { looping = !looping; arrange(); });
  function arrange() {
    switches.forEach((press, i) => press.setAttribute('aria-pressed', !beside && i === shown));
    both.setAttribute('aria-pressed', beside);
    loop.setAttribute('aria-pressed', looping);
    maps.forEach((map, i) => { map.figure.hidden = !beside && i !== shown; });
    holder.classList.toggle('beside', beside);
    keep('map', shown === maps.length - 1 ? '' : String(shown));
    keep('beside', beside ? '1' : '');
    choose(chosen);
  }
  const seen = act => () => maps.filter(map => !map.figure.hidden).forEach(act);
  const find = make('input', { type: 'search', placeholder: 'find by name', 'aria-label': 'Find images by their names' });
  find.value = view.get('find') ?? '';
  find.addEventListener('input', () => search(find.value));
  const legend = make('div', { class: 'kinds', tabindex: 0, role: 'group', 'aria-label': 'Kinds of images' });
  for (const kind of kinds.filter(kind => kind >= 0)) {
    legend.append(tick(classes[kind], !hidden.has(kind), on => {
      if (on) hidden.delete(kind); else hidden.add(kind);
      keep('hide', ...[...hidden].map(kind => classes[kind]));
      show();
    }, stamp(kind, 5)));
  }
  const notes = [same ? '' : 'This link was made for another map. Its positions and loops are ignored.', ...gone.map(name => `${name} is not on this map.`)];
  holder.prepend(...notes.filter(Boolean).map(note => make('p', { class: 'note', role: 'status' }, note)), make('div', { class: 'tools' }, ...switches, ...(maps.length > 1 ? [both] : []),
    button('+', 'Zoom in', seen(map => zoom(map, 1.5))), button('−', 'Zoom out', seen(map => zoom(map, 1 / 1.5))),
    button('reset zoom', 'Show the whole map', seen(map => move(map, 0.5, 0.5, 0.92))), loop, find));
  holder.append(make('div', { class: 'told' }, ...(classes.length ? [legend] : []), make('div', { class: 'looked' }, big, named), parts, rows));
  holder.after(hits, list);
  for (const span of all('.thumb[data-image]')) {
    const press = thumb(Number(span.dataset.image), span.textContent.trim());
    press.addEventListener('click', () => holder.scrollIntoView());
    span.replaceWith(press);
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { stamps = new Map(); redraw(); });
  for (const image of sheets) image.decode().then(() => { ready += 1; redraw(); });
  arrange();
  search(find.value);
  show();
}
