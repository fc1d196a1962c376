"""How a page looks: light and dark by the reader's setting, one column, down to a phone's width."""

STYLE = """
:root {
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2433; --quiet: #667085; --line: #e3e1dc; --accent: #2563c9;
  --right: #1a8f5a; --wrong: #d1453b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #13161c; --card: #1b1f28; --ink: #e7e9ee; --quiet: #98a1b3; --line: #2e3440; --accent: #7aa9f7;
    --right: #43c088; --wrong: #f0776d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 960px; margin: 0 auto; padding: 40px 20px 64px; }
header { margin-bottom: 28px; }
h1 { font-size: clamp(26px, 5vw, 38px); line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 12px; }
h2 { font-size: 20px; letter-spacing: -0.01em; margin: 0 0 6px; }
p { margin: 0 0 14px; max-width: 70ch; }
.lead { font-size: 18px; color: var(--quiet); }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: clamp(16px, 3vw, 28px); margin-bottom: 20px;
}
figure { margin: 0; }
figcaption { color: var(--quiet); font-size: 13.5px; margin-top: 10px; }
svg.plot { display: block; width: 100%; height: auto; }
.plots { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: 8px 12px; text-align: right; font-weight: 400; white-space: nowrap; }
td, th { border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-size: 14px; }
th[scope=row] { text-align: left; white-space: normal; padding-left: 0; }
tbody tr:last-child > * { border-bottom: 0; }
td.best { font-weight: 700; color: var(--accent); }
.quiet { color: var(--quiet); }

.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); }
.tile b { display: block; font-size: 30px; line-height: 1.2; letter-spacing: -0.02em; color: var(--accent); }
.tile span { font-size: 14px; color: var(--quiet); }

.pairs { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); }
.pair { display: grid; grid-template-columns: repeat(3, 1fr); gap: 3px; }
.neighbours { display: grid; gap: 10px; }
.neighbours > div { display: grid; grid-template-columns: 1.15fr 10px repeat(7, 1fr); gap: 4px; align-items: center; }
.picture { position: relative; display: block; }
.neighbours img, .pair img { display: block; width: 100%; aspect-ratio: 1; border-radius: 5px; }
.picture.right img { box-shadow: 0 0 0 3px var(--right); }
.picture.wrong img { box-shadow: 0 0 0 3px var(--wrong); }
.picture.wrong::after {
  content: "\\00d7"; position: absolute; right: -4px; top: -6px; width: 17px; height: 17px; border-radius: 50%;
  background: var(--wrong); color: var(--card); font: 700 13px/17px system-ui, sans-serif; text-align: center;
}
.query { font-size: 12.5px; color: var(--quiet); text-align: center; line-height: 1.3; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 5px; }
.right-swatch { background: var(--right); } .wrong-swatch { background: var(--wrong); margin-left: 12px; }
@media (max-width: 520px) {
  .neighbours > div { grid-template-columns: repeat(4, 1fr); gap: 7px; padding-bottom: 12px; }
  .neighbours > div { border-bottom: 1px solid var(--line); }
  .neighbours .gap { display: none; }
  .pairs { grid-template-columns: 1fr 1fr; }
}
"""
