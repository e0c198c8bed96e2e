"""Style sheets: of the figures, which also live outside the page, and of the page."""

_LIGHT = (
    "--paper:#fff;--ink:#1d2430;--soft:#5c6675;--rule:#dfe3e9;--card:#f7f8fa;--heat:#1f5fae;"
    "--c0:#1f6fc4;--c1:#d2691e;--c2:#6b7280;--c3:#2a9160;--c4:#8a4fb5;--c5:#c2314f;--mark:#d2691e"
)
_DARK = (
    "--paper:#12161c;--ink:#e6e9ee;--soft:#9aa5b4;--rule:#2c343f;--card:#1a2028;--heat:#6fb1ff;"
    "--c0:#5ea8f2;--c1:#f0954a;--c2:#9aa5b4;--c3:#55c08c;--c4:#bb8be0;--c5:#f0718a;--mark:#ffb066"
)
_SERIES = "".join(f"svg .c{i}{{stroke:var(--c{i})}}svg .f{i}{{fill:var(--c{i})}}" for i in range(6))

FIGURE_STYLE = (
    f":root{{{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"@media print{{:root{{{_LIGHT}}}}}"
    "svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}"
    "svg .tick{fill:var(--soft);font-size:11px}"
    "svg .grid{stroke:var(--rule)}svg .axis{stroke:var(--soft)}"
    "svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .dash{stroke-dasharray:5 4}"
    "svg .band{opacity:.2}"
    "svg .dot{fill:none;stroke-width:4.5;stroke-linecap:round;stroke-opacity:.75}"
    "svg .marker{stroke:var(--soft);stroke-dasharray:2 3}"
    "svg .frame{fill:none;stroke:var(--rule)}svg .heat{fill:var(--heat)}"
    "svg g.heat{shape-rendering:crispEdges}"
    "svg .truth{fill:none;stroke:var(--mark);stroke-width:4;stroke-linecap:round}"
    f"{_SERIES}"
)

_TEXT = (
    "*{box-sizing:border-box}html{scroll-padding-top:1rem}"
    "body{margin:0;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    "main{width:100%;max-width:1240px;margin:0 auto;padding:1.2rem;min-width:0}"
    "h1{font-size:1.9rem;line-height:1.2;margin:.6rem 0}h2{margin:2.4rem 0 .4rem;font-size:1.4rem}"
    "h2.sub{font-size:1.2rem;margin-top:2rem}h3{font-size:1rem;margin:0 0 .6rem}"
    "a{color:var(--c0)}dd,p,a,summary{overflow-wrap:anywhere}"
    ".what,.note{color:var(--soft);font-size:.86rem}"
    ".lead{font-size:1.05rem;max-width:60rem}"
    ".answer{font-size:1.35rem;line-height:1.35;margin:.8rem 0}.answer b{font-size:1.9rem}"
    ".finding{font-size:1.1rem;max-width:60rem;margin:.3rem 0}"
    ".control{color:var(--soft);max-width:60rem;margin:.2rem 0 .9rem}"
    ".control::before{content:'Control: ';font-weight:600}"
    "dt{font-weight:600;margin-top:.5rem}dd{margin:0}code{font-size:.9em}"
)
# Figures stand in the order in which they are told, row by row.
_FIGURES = (
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));"
    "gap:1rem;align-items:start;margin-top:.8rem}"
    "figure{margin:0;padding:1rem;background:var(--card);border-radius:10px;min-width:0}"
    "figure.wide{grid-column:1/-1}"
    "svg{display:block;width:100%;height:auto;margin:0 auto}"
    "figcaption p{margin:.7rem 0 0;font-size:.92rem;max-width:60rem}"
    "figcaption .note{margin-top:.4rem}"
)
_TABLES = (
    ".scroll{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;width:100%}"
    "td.wrap{white-space:normal;min-width:7.5rem}"
    "th,td{padding:.35rem .5rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--rule)}"
    "th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}"
)
_CONTENTS = (
    ".page{display:grid;grid-template-columns:15rem minmax(0,1fr)}"
    ".contents{position:sticky;top:0;height:100vh;overflow-y:auto;padding:1.2rem .8rem;"
    "font-size:.88rem;border-right:1px solid var(--rule)}"
    ".contents ul,.contents ol{list-style:none;margin:0;padding:0}"
    ".contents ol{padding-left:1.1rem}.contents li{margin:.3rem 0}"
    ".contents a{text-decoration:none}.contents a:hover{text-decoration:underline}"
    ".contents a.here{font-weight:600}summary{cursor:pointer}"
    ".contents>details>summary{color:var(--soft)}"
    "details.run{border-top:1px solid var(--rule);margin-top:2rem}"
    "details.run>summary>h2{display:inline-block;margin:1.2rem 0 .4rem}"
)
_PRINT = (
    "@media print{figure{break-inside:avoid;background:none;border:1px solid var(--rule)}"
    ".page{display:block}.contents{display:none}"
    "main{max-width:none;padding:0}body{font-size:10pt}"
    ".grid{grid-template-columns:repeat(2,minmax(0,1fr))}h2,h3,.finding{break-after:avoid}"
    ".scroll{overflow:visible}table{font-size:7.5pt}th,td{padding:.2rem;white-space:normal}}"
)
_NARROW = (
    "@media (max-width:1000px){.page{display:block}.contents{position:static;height:auto;"
    "border:0;border-bottom:1px solid var(--rule);padding:.6rem .8rem;background:var(--paper)}"
    ".js .contents{position:sticky;z-index:2;max-height:70vh}"
    ".js{scroll-padding-top:3.5rem}}"
    "@media (max-width:600px){main{padding:.7rem}figure{padding:.7rem}h1{font-size:1.5rem}"
    ".answer{font-size:1.1rem}.answer b{font-size:1.5rem}"
    "figure:not(.wide) svg text{font-size:14px}figure:not(.wide) svg .tick{font-size:13px}"
    "figure.wide{overflow-x:auto}figure.wide>svg{min-width:520px}"
    "table.stacks thead{display:none}table.stacks tr{display:block;margin-bottom:1rem}"
    "table.stacks td{display:flex;justify-content:space-between;gap:1rem;white-space:normal;"
    "text-align:right;min-width:0}"
    "table.stacks td::before{content:attr(data-label);color:var(--soft);text-align:left}}"
)
PAGE_STYLE = _TEXT + _FIGURES + _TABLES + _CONTENTS + _PRINT + _NARROW
