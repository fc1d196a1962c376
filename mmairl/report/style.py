"""How a page looks: light and dark by the reader's setting, one column, down to a phone's width."""

STYLE = """
:root {
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2433; --quiet: #667085; --line: #e3e1dc; --accent: #2563c9;
  --right: #1a8f5a; --wrong: #d1453b; --published: #96600f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #13161c; --card: #1b1f28; --ink: #e7e9ee; --quiet: #98a1b3; --line: #2e3440; --accent: #7aa9f7;
    --right: #43c088; --wrong: #f0776d; --published: #dcae58;
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

STUDY_STYLE = """
main { max-width: 1180px; }
td.words, .text th { overflow-wrap: break-word; }
h1, h3, .banner, dd, .checks { overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 0 0 8px; }
header p { max-width: 860px; } h1 { text-wrap: balance; }
.panels { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
code { font: 0.86em ui-monospace, "DejaVu Sans Mono", monospace; }
pre { overflow: auto; max-height: 420px; margin: 10px 0 0; padding: 12px; background: var(--paper); border-radius: 8px; }
pre { font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
a { color: var(--accent); text-decoration: none; } a:hover, a:focus-visible { text-decoration: underline; }
.good { color: var(--right); white-space: nowrap; } .bad { color: var(--wrong); }

.chip { font-size: 12px; line-height: 1.5; padding: 1px 8px; border-radius: 99px; white-space: nowrap; }
.chip { border: 1.5px solid var(--accent); font-weight: 600; }
.chip.measured { background: var(--accent); color: var(--card); }
.chip.published { color: var(--published); border: 1.5px dashed var(--published); }
.chip.gap { color: var(--quiet); border-color: var(--line); }
.banner { display: grid; gap: 10px 28px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
.banner { margin-bottom: 20px; } .banner p { margin: 0; font-size: 15px; }

.study table { border-collapse: separate; border-spacing: 0; } /* or what sticks covers the lines */
.study td, .study th { padding: 9px 10px; vertical-align: top; }
.study thead th { vertical-align: bottom; white-space: normal; text-wrap: balance; }
.study thead th { line-height: 1.25; font-size: 13px; min-width: 66px; }
.study thead th span:not(.chip) { display: block; font-size: 11.5px; }
.study thead tr:first-child > * { border: 0; padding-bottom: 2px; }
.study thead th[colspan] { text-align: left; }
.study th[scope=row] { min-width: 210px; max-width: 270px; line-height: 1.35; padding-left: 0; overflow-wrap: anywhere; }
.study th[scope=row], .study thead td:first-child { position: sticky; left: 0; background: var(--card); z-index: 1; }
.study th[scope=row] a { color: var(--ink); font-weight: 600; }
.study th[scope=row] span { display: block; font-size: 12.5px; color: var(--quiet); margin-top: 2px; }
.study th[scope=row] .lacks { color: var(--wrong); } .lacks::before { content: "✕ "; }
.study td small { display: block; font-size: 12px; color: var(--quiet); line-height: 1.4; min-height: 1.4em; }
.study .measured .value { font-weight: 650; color: var(--ink); }
.study .spread { display: inline-block; min-width: 3.1em; text-align: right; font-size: 13px; color: var(--quiet); }
.study .change { color: var(--ink); } .study .change.within { color: var(--quiet); }
.study .n { display: inline-block; min-width: 3.1em; white-space: nowrap; }
.study .published { color: var(--published); font-style: italic; }
.study .published .change { color: var(--published); }
.study .published { background: color-mix(in srgb, var(--published) 6%, transparent); }
.seed { display: inline-block; min-width: 22px; padding: 0 5px; margin-left: 4px; border-radius: 6px; text-align: center; }
.seed { border: 1px solid var(--line); font-size: 13px; }
.study .seeds { margin-top: 4px; } .study th[scope=row] .seed { font-weight: 400; color: var(--accent); }
.study th[scope=row] :is(.failed, .missing, .running) { color: var(--wrong); border: 1px dashed; }

.panel { border: 1px solid var(--line); border-radius: 10px; padding: 14px 14px 8px; min-width: 0; }
.panel.published { border: 1.5px dashed color-mix(in srgb, var(--published) 55%, transparent); }
.panel h3 { font-weight: 500; } .panel svg.plot { max-width: 460px; margin: 0 auto; }
details { margin-top: 10px; } summary { cursor: pointer; }
details .plots { margin-top: 12px; }
.text td, .text th { text-align: left; padding-left: 0; vertical-align: top; font-size: 14px; }
.text td.words { white-space: normal; min-width: 110px; }
.text code { display: block; white-space: nowrap; overflow-wrap: normal; }
.checks { margin: 14px 0 0; padding: 0; list-style: none; font-size: 14.5px; } .checks > li { margin-top: 4px; }
.row { border-top: 1px solid var(--line); padding: 16px 0; } .row:last-child { padding-bottom: 0; }
.row p { font-size: 14px; margin: 0; max-width: none; overflow-wrap: anywhere; }
.row details { font-size: 14.5px; margin-top: 6px; }
.run dl { display: grid; grid-template-columns: minmax(90px, 130px) 1fr; gap: 4px 14px; margin: 10px 0; }
.run dt { color: var(--quiet); } .run dd { margin: 0; min-width: 0; }
:target { outline: 2px solid var(--accent); outline-offset: 4px; border-radius: 4px; }
@media (max-width: 520px) {
  .study th[scope=row] { min-width: 132px; max-width: 150px; font-size: 13.5px; padding-right: 6px; }
  .study th[scope=row] span { font-size: 11.5px; }
  .panel { padding: 12px 8px 6px; }
  .run dl { grid-template-columns: 1fr; gap: 0; } .run dd { margin-bottom: 6px; }
}
"""
