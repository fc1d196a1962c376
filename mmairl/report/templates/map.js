// ---- A map of images: the pointer shows one, a click its nearest, a drawn loop lists what is in it

const holder = document.getElementById('map');
showMap(JSON.parse(document.getElementById('data').textContent));

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
  const kindOf = i => labels[i] < 0 ? '' : classes[labels[i]];

  function paint(context, i, x, y, size) {
    const place = i % sheet ** 2, from = sheets[Math.floor(i / sheet ** 2)];
    context.drawImage(from, place % sheet * side, Math.floor(place / sheet) * side, side, side, x, y, size, size);
  }

  // A disc, square, triangle, rhombus or triangle on its point, as on the charts.
  function shape(context, kind, x, y, r) {
    const number = kind < 0 ? 0 : (kind + Math.floor(kind / SIGNS.colours.length)) % 5;
    if (number === 0) { context.moveTo(x + r, y); context.arc(x, y, r, 0, 7); return; }
    const corners = [, [-1, -1, 1, -1, 1, 1, -1, 1], [0, -1.2, 1.2, 1, -1.2, 1], [0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0], [0, 1.2, 1.2, -1, -1.2, -1]][number];
    for (let c = 0; c < corners.length; c += 2) context[c ? 'lineTo' : 'moveTo'](x + r * corners[c], y + r * corners[c + 1]);
    context.closePath();
  }
  const colour = kind => kind < 0 ? css('--accent') : SIGNS.colours[kind % SIGNS.colours.length];
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
