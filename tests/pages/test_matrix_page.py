"""The heat map says what the document says, and nothing that it says can leave its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from pyggml.matrix.verdict import VERDICTS
from pyggml.pages.matrix import SIGNS, matrix_page
from tests.command_line import run_here
from tests.pages.documents import BEFORE, HOSTILE, NOW, case, matrix_document


class Page(HTMLParser):
    """The elements of a page, in order: name, attributes, and the text directly in them."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.elements:
            self.elements[-1][2].append(data)

    def cells(self) -> dict[str, str]:
        """Label to sign of every cell."""
        return {
            str(attrs["aria-label"]): "".join(text).strip()
            for tag, attrs, text in self.elements
            if tag == "button"
        }


def test_every_row_is_a_cell() -> None:
    cells = Page(matrix_page(NOW)).cells()
    assert cells == {
        "llama-dense, cpu f16: references": "·",
        "llama-dense, tensor 2 device f16: within the bound": "≈",
        "llama-dense, tensor 2 host f16: identical": "=",
        f"{HOSTILE}, tensor 2 device f16: died": "✗",
    }


def test_devices_that_differ_have_a_cell_of_their_own() -> None:
    plain, padded = (case("m", "device", "within", 0.0, traits=traits) for traits in ("", "1:pad=512"))
    assert list(Page(matrix_page(matrix_document(padded, plain))).cells()) == [
        "m, tensor 2 device f16: within the bound",
        "m, tensor 2 device f16 [1:pad=512]: within the bound",
    ]


def test_every_verdict_has_a_sign_of_its_own() -> None:
    assert list(SIGNS) == list(VERDICTS)
    assert len(set(SIGNS.values())) == len(VERDICTS)


def test_what_changed_since_an_earlier_run() -> None:
    page = matrix_page(NOW, BEFORE).decode()
    cells = Page(page.encode()).cells()
    assert "llama-dense, tensor 2 host f16: identical, was died" in cells
    assert f"{HOSTILE}, tensor 2 device f16: died, new" in cells
    assert "llama-dense, tensor 2 device f16: within the bound" in cells
    assert "<li>gone-dense, tensor 2 host f16</li>" in page
    assert "3 rows have another verdict" in page


def test_hostile_text_stays_text() -> None:
    page = matrix_page(NOW)
    parsed = Page(page)
    assert [tag for tag, _, _ in parsed.elements].count("script") == 2
    assert not any(tag == "img" for tag, _, _ in parsed.elements)
    data = next(
        "".join(text)
        for tag, attrs, text in parsed.elements
        if tag == "script" and attrs.get("id") == "details"
    )
    told = [dict(cell) for row in json.loads(data) for cell in row if cell]
    died = next(detail for detail in told if detail.get("when") == "step 1 of 8")
    assert died["why"] == f"it died: {HOSTILE}"
    assert died["where"] == "ggml/src/ggml-backend-meta.cpp:543"
    assert died["time"] == "0.25 s"
    assert next(d for d in told if "against cpu" in d)["against cpu"] == "NMSE 2.00e-07, 12 logits differ"


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = matrix_page(NOW, BEFORE)
    for _, attrs, _ in Page(page).elements:
        assert not {"src", "srcset", "data", "action", "background"} & attrs.keys()
        assert str(attrs.get("href", "#")).startswith("#")
    assert not re.search(r"url\(|@import|https?://", page.decode())
    assert "default-src 'none'" in page.decode()


def test_the_scale_of_the_distance() -> None:
    values = {0.0: 0, 1e-13: 1, 2e-9: 2, 2e-7: 2, 5e-5: 3, 1e-3: 4, 0.5: 4}
    document = matrix_document(*(case(f"m{n}", "device", "within", v) for n, v in enumerate(values)))
    levels = re.findall(r"level(\d)[^>]*aria-label=\"m\d", matrix_page(document).decode())
    assert [int(level) for level in levels] == list(values.values())


def test_since_must_be_what_the_matrix_wrote(tmp_path: Path) -> None:
    for content in (b"[]", b"{", b'{"cases": [1]}', b'{"cases": [{}]}', b"\xff"):
        (tmp_path / "old.json").write_bytes(content)
        ended = run_here("matrix", "--html", "new.html", "--since", "old.json", cwd=tmp_path)
        assert (ended.code, ended.err.splitlines()[0]) == (
            2, "pyggml: old.json is not what `pyggml matrix --json` writes",
        )  # fmt: skip
    assert run_here("matrix", "--since", "old.json", cwd=tmp_path).code == 2
