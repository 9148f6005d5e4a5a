"""`summary.html`: the main results on one page with pictures."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from markdown_it import MarkdownIt

from pubswap_simulation.reporting.markdown import contrasts_parts, facts, reach_parts
from pubswap_simulation.reporting.pictures.draw import Picture
from pubswap_simulation.reporting.report import Report

# One file beside its pictures; it prints on a few sheets.
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.4 system-ui, sans-serif; max-width: 75rem; }}
body {{ margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: .8rem 0; font-size: 13px; }}
th, td {{ padding: .2rem .6rem; border-bottom: 1px solid #8884; }}
.tables {{ overflow-x: auto; }}
.pictures {{ display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; align-items: center; }}
img {{ max-width: 100%; height: auto; background: #fff; }}
.clients, .topics {{ grid-column: 1 / -1; justify-self: center; }}
@media screen and (max-width: 45rem) {{ .pictures {{ grid-template-columns: 1fr; }} }}
h1, h2, h3 {{ margin: 1rem 0 .4rem; }}
@media print {{ body {{ font-size: 10pt; margin: 0; }} .tables {{ overflow: visible; }} }}
@media print {{ img, table {{ break-inside: avoid; }} }}
</style>
</head>
<body>
<main>
{body}</main>
</body>
</html>
"""
_MOVED = '<div class="tables" tabindex="0" role="group" aria-label="Table">'
_KINDS = ("arms", "final", "curves", "topics", "clients")
_INTRODUCTION = """\
Means over seeds with their 95 % intervals; differences are paired by seed. `report.md` beside
this page has all tables."""


def summary(report: Report, pictures: Mapping[str, Sequence[Picture]]) -> str:
    """The page; `pictures` by section title or contrast."""
    parts = [_html(["# Results", _INTRODUCTION, *contrasts_parts(report, pictures)])]
    for section in report.sections:
        parts.append(_html([f"## {section.title}", facts(section)]))
        shown = [picture for picture in pictures.get(section.title, ()) if picture.kind in _KINDS]
        parts.append(_figures(picture for picture in shown if "-beyond" not in picture.name))
        parts.append(_html(reach_parts(section)))
    title = ", ".join(section.title for section in report.sections)
    return _PAGE.format(title=escape(title), body="\n".join(parts))


def _html(parts: Sequence[str]) -> str:
    page = str(MarkdownIt("commonmark").enable("table").render("\n\n".join(parts)))
    # On a narrow screen each table scrolls by itself, also with the keyboard.
    page = page.replace("<table>", f"{_MOVED}<table>").replace("</table>", "</table></div>")
    return re.sub(r"<th(?=[ >])", '<th scope="col"', page)


def _figures(pictures: Iterable[Picture]) -> str:
    images = [
        f'<img class="{picture.kind}" src="{escape(picture.name)}" alt="{escape(picture.caption)}">'
        for picture in pictures
    ]
    return f'<div class="pictures">{"".join(images)}</div>'
