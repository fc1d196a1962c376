// A link into a folded part opens it. Without this it is scrolled to all the same.
function unfold() {
  const found = document.getElementById(location.hash.slice(1));
  for (let e = found; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true;
  if (found) found.scrollIntoView();
}
addEventListener('hashchange', unfold);
unfold();
