// ---- Figures: a part that is pointed at tells its value and is marked in all others, and a figure is copied

for (const svg of all('svg.plot')) {
  const label = svg.getAttribute('aria-label'), frame = make('div', { class: 'chart' }), tip = make('output', { class: 'tip' });
  const marks = JSON.parse(svg.dataset.marks).map(([id, name, text]) => ({ part: document.getElementById(id), name: words(name), text }));
  let now = -1;
  svg.replaceWith(frame);
  frame.append(make('div', { class: 'tools' },
    button('SVG', `Copy the figure ${label} as SVG`, from => give(from, standalone(svg), 'figure.svg')),
    button('PNG', `Copy the figure ${label} as PNG`, async from => give(from, await rendered(svg), 'figure.png'))), svg, tip);
  if (!marks.length) continue;

  const boxOf = ({ part }) => part.getBoundingClientRect();
  function tell(i) {
    if (now !== i) mark(marks[i]?.name ?? null);
    now = i;
    tip.textContent = i < 0 ? '' : `${marks[i].name}: ${marks[i].text}`;
    if (i < 0) return;
    const box = boxOf(marks[i]), own = frame.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(box.left - own.left - 40, own.width - tip.offsetWidth))}px`;
    tip.style.top = `${box.bottom - own.top + 8}px`;
  }
  function near({ clientX, clientY }) { // the part whose middle is nearest, as far as a finger is broad
    const off = marks.map(mark => { const box = boxOf(mark); return Math.hypot((box.left + box.right) / 2 - clientX, (box.top + box.bottom) / 2 - clientY); });
    const least = Math.min(...off);
    tell(least < 60 ? off.indexOf(least) : -1);
  }
  for (const kind of ['pointerdown', 'pointermove']) svg.addEventListener(kind, near);
  svg.addEventListener('pointerleave', event => { if (event.pointerType !== 'touch') tell(-1); }); // a finger leaves, its tip stays
  set(frame, { tabindex: 0, role: 'group', 'aria-label': `${label}; the arrow keys read its values` });
  frame.addEventListener('keydown', event => {
    const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: marks.length - 1, Escape: -1 }[event.key];
    if (to === undefined || event.target !== frame) return;
    event.preventDefault();
    tell(Math.max(to, event.key === 'Escape' ? -1 : 0) % marks.length);
    said.textContent = tip.textContent;
  });
  markers.push(name => marks.forEach(({ part, name: own }) => part.classList.toggle('marked', own === name)));
}

// The figure as a file of its own, in the page's present colours.
function standalone(svg) {
  const copy = svg.cloneNode(true), { width, height } = svg.viewBox.baseVal;
  all('.marked', copy).forEach(part => part.classList.remove('marked'));
  for (const name of ['data-marks', 'class']) copy.removeAttribute(name);
  set(copy, { width, height, 'stroke-linejoin': 'round', 'font-family': 'sans-serif' });
  copy.prepend(set(document.createElementNS(svg.namespaceURI, 'rect'), { width, height, fill: 'var(--card)' }));
  return new XMLSerializer().serializeToString(copy).replace(/var\((--\w+)\)/g, (_, name) => css(name));
}

async function rendered(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
  await image.decode();
  const [width, height] = [image.width * 3, image.height * 3];
  return png(width, height, context => context.drawImage(image, 0, 0, width, height));
}
