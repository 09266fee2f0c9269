"""Reports: one HTML file that opens offline, prints, and holds everything it shows, the timeline player included.

``page`` turns a ``Page`` of plain blocks into the file; ``run_report`` (``engine.lab.report.runs``) makes the Page of a
Run; the lab's pages make those of a lesson. Every text is escaped by the template, every number that was measured or
modelled carries its badge, and a policy in the file forbids it to load anything from anywhere.
"""

from engine.lab.report.blocks import Cell, Code, Facts, Page, Section, Table, Text, Timeline, page
from engine.lab.report.runs import run_report, run_sections

__all__ = [
    "Cell",
    "Code",
    "Facts",
    "Page",
    "Section",
    "Table",
    "Text",
    "Timeline",
    "page",
    "run_report",
    "run_sections",
]
