"""The report on paper: one page for the year, one for each month."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import pydyf

A4 = (595, 842)
LEFT, TOP, LINE = 72, 760, 18
BAR = 200

Totals = Mapping[str, int]
"""Cents by product, or by month."""


def report(title: str, months: Mapping[str, Totals]) -> bytes:
    """Return a PDF; the same figures give the same bytes."""
    pdf = pydyf.PDF()
    pdf.info["Title"] = pydyf.String(title)
    fonts = pydyf.Dictionary({"R": _font("Helvetica"), "B": _font("Helvetica-Bold")})
    year = {month: sum(totals.values()) for month, totals in months.items()}
    _page(pdf, fonts, title, year)
    for month, totals in months.items():
        _page(pdf, fonts, f"{title}: {month}", totals)
    out = BytesIO()
    pdf.write(out, identifier=True)
    return out.getvalue()


def money(cents: int) -> str:
    """Return an amount as people write it."""
    return f"{cents // 100:,}.{cents % 100:02}"


def _font(name: str) -> pydyf.Dictionary:
    return pydyf.Dictionary({"Type": "/Font", "Subtype": "/Type1", "BaseFont": f"/{name}"})


def _page(pdf: pydyf.PDF, fonts: pydyf.Dictionary, title: str, totals: Totals) -> None:
    drawn = pydyf.Stream(compress=True)
    _text(drawn, "B", 20, TOP, (LEFT, title))
    largest = max(totals.values())
    y = TOP - 3 * LINE
    for name, cents in totals.items():
        _text(drawn, "R", 11, y, (LEFT, name), (LEFT + 90, money(cents)))
        drawn.rectangle(LEFT + 190, y - 2, round(BAR * cents / largest), 11)
        drawn.fill()
        y -= LINE
    _text(drawn, "B", 11, y, (LEFT, "total"), (LEFT + 90, money(sum(totals.values()))))
    pdf.add_object(drawn)
    page = {
        "Type": "/Page",
        "Parent": pdf.pages.reference,
        "MediaBox": pydyf.Array([0, 0, *A4]),
        "Contents": drawn.reference,
        "Resources": pydyf.Dictionary({"Font": fonts}),
    }
    pdf.add_page(pydyf.Dictionary(page))


def _text(drawn: pydyf.Stream, font: str, size: int, y: int, *pieces: tuple[int, str]) -> None:
    for x, piece in pieces:
        drawn.begin_text()
        drawn.set_font_size(font, size)
        drawn.set_text_matrix(1, 0, 0, 1, x, y)
        drawn.show_text_string(piece)
        drawn.end_text()
