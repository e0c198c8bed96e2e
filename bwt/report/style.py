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

PAGE_STYLE = (
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}"
    "main{max-width:1240px;margin:0 auto;padding:1.2rem}"
    "h1{font-size:1.9rem;line-height:1.2;margin:.6rem 0}h2{margin:2.4rem 0 .4rem;font-size:1.4rem}"
    "h2.sub{font-size:1.15rem;margin-top:1.8rem}h3{font-size:1rem;margin:0 0 .6rem}"
    "a{color:var(--c0)}"
    ".what,.note{color:var(--soft);font-size:.86rem}"
    ".lead{font-size:1.05rem;max-width:60rem}"
    ".grid{column-width:430px;column-gap:1rem}"
    "figure{margin:0 0 1rem;padding:1rem;background:var(--card);border-radius:10px;"
    "break-inside:avoid}figure.wide{column-span:all;margin-top:1rem}"
    "svg{display:block;width:100%;height:auto;margin:0 auto}"
    "figcaption p{margin:.7rem 0 0;font-size:.92rem}figcaption .note{margin-top:.4rem}"
    ".scroll{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;width:100%}"
    "td.wrap{white-space:normal;min-width:7.5rem}"
    "th,td{padding:.35rem .5rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--rule)}"
    "th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}"
    "dt{font-weight:600;margin-top:.5rem}dd{margin:0}code{font-size:.9em}"
    "@media print{figure{break-inside:avoid;background:none;border:1px solid var(--rule)}"
    "main{max-width:none;padding:0}body{font-size:10pt}.grid{column-width:300px}"
    ".scroll{overflow:visible}table{font-size:7.5pt}th,td{padding:.2rem;white-space:normal}}"
    "@media (max-width:600px){main{padding:.7rem}figure{padding:.7rem}"
    "figure:not(.wide) svg text{font-size:14px}figure:not(.wide) svg .tick{font-size:13px}"
    "figure.wide{overflow-x:auto}figure.wide>svg{min-width:520px}}"
)
