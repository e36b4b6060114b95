"""The viewer in a real browser and by bare requests: rows, search, addresses, and everything that it must refuse."""

import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gristmill_testing.pictures import photo
from gristmill_testing.reports import EVIL
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill import steps
from gristmill.cli.main import main
from gristmill.core.errors import UsageError
from gristmill.pipeline.inspecting.viewing import open_collections
from gristmill.report.markup import encode_plain
from gristmill.report.view.page_requests import describe_safely
from gristmill.report.view.rows import count_rows
from gristmill.report.view.server import Viewer
from gristmill.shards.dataset import open_dataset


@pytest.fixture
def serve():
    """Serves collections until the test ends."""
    viewers = []

    def start(*paths):
        viewer = Viewer(open_collections(paths))
        viewer.start()
        viewers.append(viewer)
        return viewer

    yield start
    for viewer in viewers:
        viewer.close()


def ask(viewer, path, *, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{viewer.port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_what_is_refused(serve, web):
    viewer = serve(web)
    token = viewer.token
    assert viewer._server.server_address[0] == "127.0.0.1"
    assert ask(viewer, f"/{token}/info")[0] == 200
    for path in ("/", "/info", "/wrong/info", f"/{token[:-1]}/info", "/../etc/passwd"):
        assert ask(viewer, path)[0] == 403, path
    assert ask(viewer, f"/{token}/info", host="evil.example")[0] == 403
    for path in ("../../etc/passwd", "%2e%2e/manifest.json", "manifest.json", "report.html"):
        assert ask(viewer, f"/{token}/{path}")[0] == 404, path
    for path in ("rows?name=no", "rows?name=out&row=x", "search?name=out&query=(&kind=regex", "search?name=out"):
        status, body = ask(viewer, f"/{token}/{path}")
        assert status == 400, path
        assert json.loads(body)["error"]
    assert ask(viewer, f"/{token}/rows?name=out", method="POST")[0] == 501


def test_rows_in_the_browser(serve, browser, web):
    viewer = serve(web)
    page = browser.open(viewer.url)
    assert read_page(page) == list(range(50))
    dataset = open_dataset(web)
    texts = page.run("[...document.querySelectorAll('#rows td.text')].map(cell => cell.textContent)")
    for number, text in enumerate(texts):
        assert text.rstrip("…") in " ".join(dataset[number]["text"].split())
    page.run("document.querySelector('tr[data-row=\"3\"] td.text').click()")
    page.wait("document.getElementById('row-3')")
    assert page.run("document.querySelector('#panel article > pre').textContent") == dataset[3]["text"]
    assert page.run("window.hacked") is None
    page.press("n", "n")
    page.wait("document.querySelector('[data-row=\"50\"]')")
    page.run("location.hash = 'show=out&split=validation&source=web'")
    ranges = viewer.collections["out"].ranges
    start = next(part.start for part in ranges if (part.split, part.source) == ("validation", "web"))
    assert start >= len(dataset) - len(dataset.split("validation"))
    page.wait(f"document.querySelector('#rows [data-row]')?.dataset.row === '{start}'")
    page.press("/", "/")
    assert page.run("document.activeElement.id") == "query"
    page.run("location.hash = 'show=out&row=0'")
    page.wait("document.getElementById('row-0')")
    page.run("document.getElementById('query').focus()")
    page.type("document 11")
    page.press("Enter")
    page.wait("document.getElementById('search-status')?.dataset.done")
    expected = [n for n in range(len(dataset)) if "document 11" in dataset[n]["text"].lower()]
    hits = page.run("[...document.querySelectorAll('.hit a')].map(a => a.textContent)")
    assert hits == [f"{number:,}" for number in expected]
    assert page.run("document.getElementById('search-status').textContent").startswith(f"{len(expected)} row")
    page.wait("document.activeElement.matches('a.line')")  # the keyboard goes on in the list
    page.press("Enter")
    page.wait(f"document.getElementById('row-{expected[0]}')")
    assert page.problems == []
    assert {url.split("/")[2] for url in page.requests if url != "about:blank"} == {f"127.0.0.1:{viewer.port}"}
    page.run("location.hash = 'show=dropped&reason=gopher_quality&row=0'")  # as a report links to them
    page.wait("document.querySelector('#panel b.bad') && document.getElementById('filter-reason').value")
    reasons = page.run("[...document.querySelectorAll('#rows td.reason')].map(cell => cell.textContent)")
    assert reasons
    assert all(reason.startswith("gopher_quality: ") for reason in reasons)
    # A document is shown even if the filters of the address would hide it.
    assert start > 0
    origin = json.loads(ask(viewer, f"/{viewer.token}/record?name=out&row=0")[1])["origin"]
    page.run(f"location.hash = 'show=out&split=validation&document={quote(origin)}'")
    page.wait("location.hash.includes('row=0') && document.getElementById('row-0')")
    page.run("location.hash = 'show=nobody'")
    page.wait("document.getElementById('problem')")
    assert 'nothing here is called "nobody"' in page.run("document.getElementById('problem').textContent")
    page.resize(375, 800)
    page.run("location.hash = 'show=out&score=gopher_quality.mean_word_length:1:'")
    page.wait("document.querySelector('.strip')")
    assert page.run("[innerWidth, document.documentElement.scrollWidth]") == [375, 375]
    page.close()


def press_all(page, *keys):
    for key in keys:
        page.press(key, key if len(key) == 1 else "")


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """A dataset with own columns, one of whose files has a name that turns the direction of text."""
    folder = tmp_path_factory.mktemp("columns")
    lines = [json.dumps({"text": f"text {n} " + "word " * (n % 40), "n": n % 60, "lang": "de" if n % 4 else "en"})
             for n in range(240)]  # fmt: skip
    (folder / "b\u202egpj.jsonl").write_text("\n".join(lines))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "*.jsonl"), columns=["n", "lang"])},
        steps=[steps.Write(format="arrow")],
        output=str(folder / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    return folder / "out"


def test_a_click_on_a_head_sorts_and_on_a_bar_filters(serve, browser, columns):
    pytest.importorskip("duckdb")
    viewer = serve(columns)
    page = browser.open(viewer.url)
    page.wait("document.querySelectorAll('.bin').length === 20 && document.querySelectorAll('.value').length === 2")
    records = list(open_dataset(columns))
    counts = page.run("[...document.querySelectorAll('.value .share')].map(share => share.textContent)")
    assert counts == ["180", "60"]
    page.run("document.querySelectorAll('.value')[1].click()")
    english = [number for number, record in enumerate(records) if record["lang"] == "en"]
    page.wait("document.getElementById('position').textContent.includes('of 60 rows')")
    assert read_page(page) == english[:50]
    for click, mark in (("↑", "ascending"), ("↓", "descending")):
        page.run("document.querySelector('[data-column=n]').click()")
        page.wait(f"document.querySelector('[data-column=n]')?.textContent.includes('{click}')")
        assert page.run("document.querySelector('[data-column=n]').closest('th').ariaSort") == mark
    page.wait("document.querySelectorAll('.bin').length === 20")
    down = sorted(english, key=lambda number: (-records[number]["n"], number))
    assert read_page(page) == down[:50]
    press_all(page, "w")
    page.type("length(text) < 40")
    page.press("Enter")
    short = [number for number in down if len(records[number]["text"]) < 40]
    page.wait(f"document.getElementById('position').textContent.includes('of {len(short)} rows')")
    assert read_page(page) == short
    page.wait("document.activeElement.matches('a.line')")
    address = page.run("location.href")
    page.go("about:blank")
    page.go(address)  # the address says all of it
    assert read_page(page) == short
    page.wait("document.querySelectorAll('.bin').length === 20")
    # Bars are one stop for Tab; arrows go from one to the next, and Enter filters.
    page.run("document.querySelector('.bin').focus()")
    press_all(page, "ArrowRight", "ArrowRight")
    label = page.run("document.activeElement.ariaLabel")
    assert label.startswith("5.9 to 8.85: ")
    page.press("Enter")
    page.wait("document.querySelectorAll('.chip').length === 3")
    page.run("[...document.querySelectorAll('.chip button')].forEach(button => button.click())")
    press_all(page, "w")
    page.type("n >")
    page.press("Enter")
    page.wait("document.getElementById('problem')?.textContent.includes('syntax')")
    assert [problem for problem in page.problems if "400" not in problem] == []
    page.close()


def test_the_list_and_the_row_next_to_it(serve, browser, columns):
    """Keys go from row to row, the panel follows; what is not there is said, and so is a viewer that has ended."""
    viewer = serve(columns)
    page = browser.open(viewer.url, width=1280)
    read_page(page)
    press_all(page, "j", "j", "ArrowDown")
    page.wait("document.getElementById('row-2')")
    assert page.run("document.activeElement.closest('tr').dataset.row") == "2"
    assert "\u202e" not in page.run("document.body.textContent")
    assert "b\\u202egpj.jsonl@" in page.run("document.querySelector('#panel header').textContent")
    press_all(page, "k")
    page.wait("document.getElementById('row-1')")
    page.browser.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.run("document.getElementById('copy').click()")
    page.wait("/copied|not allowed/.test(document.getElementById('copy').textContent)")
    page.press("Escape")
    page.wait("document.getElementById('panel').hidden")
    assert page.run("document.activeElement.closest('tr').dataset.row") == "1"
    press_all(page, "g")
    page.type("120")
    page.press("Enter")
    page.wait("document.getElementById('row-120') && document.activeElement.closest('tr')?.dataset.row === '120'")
    assert read_page(page)[0] == 100
    press_all(page, "g")
    page.type("999,999")
    page.press("Enter")
    page.wait("document.getElementById('row-problem')")
    assert "no row 999,999" in page.run("document.getElementById('row-problem').textContent")
    page.press("Escape")
    page.resize(390, 844)
    page.run("location.hash = 'row=5'")
    page.wait("document.getElementById('row-5')")
    box = page.run("(() => { const box = document.getElementById('panel').getBoundingClientRect(); "
                   "return [box.left, box.width]; })()")  # fmt: skip
    assert box == [0, 390]  # over the list, with a button that closes it
    page.run("document.getElementById('close').click()")
    page.wait("document.getElementById('panel').hidden")
    viewer.close()
    page.run("location.hash = 'split=train'")
    page.wait("document.getElementById('problem')")
    told = page.run("document.getElementById('problem').textContent")
    assert "no longer answers" in told
    assert "gristmill view" in told
    page.close()


def test_a_search_counts_all_and_shows_the_next(serve, browser, columns):
    page = browser.open(serve(columns).url + "#query=text")
    page.wait("document.getElementById('search-status')?.dataset.done")
    assert page.run("document.getElementById('search-status').textContent") == "240 rows found; the first 200 are shown"
    page.run("document.getElementById('more').click()")
    page.wait("document.querySelectorAll('.hit').length === 40")
    assert read_page(page) == list(range(200, 240))
    page.close()


def test_chats_are_turns_with_the_trained_text_marked(serve, browser, tmp_path):
    trained(tmp_path / "tokenizer", specials=("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"))
    chats = [[{"role": "user", "content": f"ask {n}"}, {"role": "assistant", "content": f"say {n}"}] for n in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    (tmp_path / "a.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    recipe = gm.Recipe(
        sources={"chats": steps.Read(read=str(tmp_path / "a.jsonl"))},
        steps=[
            steps.Render(template=str(tmp_path / "a.jinja")),
            steps.Tokenize(tokenizer=str(tmp_path / "tokenizer")),
            steps.Pack(row_length=128),
        ],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    page = browser.open(serve(tmp_path / "out").url + "#row=0")
    page.wait("document.querySelector('#row-0 .turn')")
    turns = page.run(
        "[...document.querySelectorAll('#row-0 .turn')].slice(0, 4).map(turn => [turn.querySelector('b').textContent, "
        "turn.querySelector('pre').textContent, "
        "[...turn.querySelectorAll('.token:not(.untrained)')].map(token => token.textContent).join('')])"
    )
    assert turns == [
        ["user", "ask 0", ""], ["assistant", "say 0", "say 0"], ["user", "ask 1", ""], ["assistant", "say 1", "say 1"],
    ]  # fmt: skip
    page.run("document.getElementById('tokens').click()")
    page.wait("!document.querySelector('#row-0 .turn') && document.querySelector('#row-0 .token')")
    assert "<|im_start|>user" in page.run("document.querySelector('#row-0').textContent")
    page.close()


def test_tokens_and_masks(serve, browser, rows):
    viewer = serve(rows)
    page = browser.open(viewer.url + "#row=0")
    page.wait("document.querySelectorAll('.token').length")
    read_page(page)
    dataset = open_dataset(rows)
    lines = page.run("[...document.querySelectorAll('[data-row=\"0\"] td.text')].map(cell => cell.textContent)")
    assert [line.rstrip("…") in text for line, text in zip(lines, dataset.documents(0), strict=True)].count(False) == 0
    shown = page.run(
        "[...document.getElementById('row-0').querySelectorAll('.document')].map(d => "
        "[...d.querySelectorAll('.token')].map(t => t.textContent).join(''))"
    )
    assert shown == dataset.documents(0)
    titles = page.run("[...document.getElementById('row-0').querySelectorAll('.token')].map(t => t.title)")
    ids = dataset[0]["input_ids"][: int(dataset[0]["lengths"].sum())].tolist()
    assert [title.split(" · ")[0] for title in titles] == [f"id {token}" for token in ids]
    texts = page.run("[...document.getElementById('row-0').querySelectorAll('.token')].map(t => t.textContent)")
    shown = [bytes.fromhex(title.split(" · ")[1].removeprefix("bytes ")).decode() for title in titles]
    assert shown == texts
    origin = page.run("document.querySelector('#row-0 .document a').textContent")
    assert titles[0].endswith(origin)
    page.close()


def test_a_late_answer_does_not_take_the_page_elsewhere(serve, browser, web):
    viewer = serve(web)
    page = browser.open(viewer.url)
    read_page(page)
    origin = json.loads(ask(viewer, f"/{viewer.token}/record?name=out&row=0")[1])["origin"]
    page.run(
        "window.send = window.fetch; window.fetch = (path, options) => (path.startsWith('document?') ? "
        "new Promise((answer) => { window.release = async () => { const got = await send(path, options); "
        "answer(got.clone()); await got.text(); }; }) : send(path, options))"
    )
    page.run(f"location.hash = 'show=out&document={quote(origin)}'")
    page.wait("window.release")
    page.run("location.hash = 'show=out&row=20'")
    page.wait("document.querySelector('#row-20')")
    page.run("release().then(() => send('info'), () => null).then(() => null)")
    assert page.run("location.hash") == "#show=out&row=20"
    page.close()


def test_characters_of_several_tokens_are_readable(serve, browser, tmp_path):
    """A tokenizer of English splits other letters into bytes: none of them is a character, all together are."""
    text = "Ein „Wort“ und ভাষা 😀 end"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    trained(tmp_path / "tokenizer")
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "a.jsonl"))},
        steps=[steps.Tokenize(tokenizer=str(tmp_path / "tokenizer")), steps.Pack(row_length=256)],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    page = browser.open(serve(tmp_path / "out").url + "#row=0")
    page.wait("document.querySelector('.document .token')")
    tokens = page.run("[...document.querySelectorAll('.document .token')].map(t => t.textContent)")
    assert "".join(tokens).startswith(text)
    assert "" in tokens
    assert page.run("document.querySelector('.document .token:empty').getBoundingClientRect().width") > 0
    page.close()


def read_page(page):
    """The numbers of the rows in the list."""
    page.wait("document.querySelector('#rows [data-row]') && !document.querySelector('#rows[aria-busy]')")
    return page.run(
        "[...new Set([...document.querySelectorAll('#rows [data-row]')].map(row => Number(row.dataset.row)))]"
    )


def read_saved(page):
    page.wait("document.querySelector('#rows article')")
    return page.run("[...document.querySelectorAll('#rows article')].map(row => row.id)")


def test_the_keyboard_alone_suffices(serve, browser, mixed_rows):
    """A filter, a row, a search, a step and the mixture are reached by keys, and the address of each opens it."""
    viewer = serve(mixed_rows)
    page = browser.open(viewer.url)
    read_page(page)

    def fill(key, text):
        page.press(key, key)
        page.type(text)
        page.press("Enter")

    def reach(selector):
        for _ in range(80):
            if page.run(f"document.activeElement.matches({json.dumps(selector)})"):
                return
            page.press("Tab")
        raise AssertionError(f"no number of tabs reaches {selector}")

    page.press("f", "f")
    page.press("ArrowDown")  # the first split
    page.wait("location.hash.includes('split=')")
    page.wait("document.activeElement.id === 'filter-split'")  # the focus stays where it was
    page.press("Escape")
    reach("#add-score")
    page.press("ArrowDown")
    page.wait("location.hash.includes('score=') && document.querySelector('.strip')")
    page.press("Escape")
    fill("g", "7")
    page.wait("document.querySelector('#row-7')")
    addresses = [page.run("location.href")]
    fill("s", "2")
    page.wait("document.getElementById('position').textContent.includes('of step 2')")
    addresses.append(page.run("location.href"))
    fill("/", "books text")
    page.wait("document.getElementById('search-status')?.dataset.done")
    addresses.append(page.run("location.href"))
    page.press("s", "s")
    reach("#mix")
    page.press("Enter")
    page.wait("document.querySelectorAll('#mixture rect').length")
    addresses.append(page.run("location.href"))
    reach("#rows a, #rows summary")
    reach("#theme")
    page.press("Enter")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert page.problems == []
    text = "document.querySelector('#rows').textContent"
    shown = page.run(text)
    page.go("about:blank")
    page.go(addresses[-1])  # what was copied shows the same to somebody else
    page.wait("document.querySelectorAll('#mixture rect').length")
    assert page.run(text) == shown
    for address, sign in zip(addresses[:3], ("#row-7", "#rows a.line", ".hit"), strict=True):
        page.go("about:blank")
        page.go(address)
        page.wait(f"document.querySelector({json.dumps(sign)})")
    page.close()


CONTRASTS = r"""(() => {
  const parse = (color) => color.match(/[\d.]+/g).map(Number);
  const flatten = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const measure = ([r, g, b]) => 0.2126 * flatten(r / 255) + 0.7152 * flatten(g / 255) + 0.0722 * flatten(b / 255);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length === 3) return color;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const hasText = (node) => node.matches("input, select, button")
    || [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  return [...document.body.querySelectorAll("*")]
    .filter((node) => node.checkVisibility() && !node.closest("svg, script") && hasText(node))
    .map((node) => [ratio(measure(parse(getComputedStyle(node).color)), measure(ground(node))),
      `${node.tagName}.${node.className}: ${node.textContent.slice(0, 40)}`]);
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_of_every_text(serve, browser, web, mixed_rows, dark):
    """All texts of the page, as they are drawn, have the contrast of WCAG AA: also in filters, marks and hits."""
    viewer = serve(web, mixed_rows)
    page = browser.open(viewer.url, dark=dark)
    for place, sign in (
        (f"show={quote(str(mixed_rows))}&row=1", ".token"),
        ("show=out&score=gopher_quality.words:1:&row=2", ".strip"),
        ("show=out&where=length(text)%3E1&sort=-text", ".bin"),
        ("show=out&query=document", "#search-status[data-done]"),
        (f"show={quote('out · dropped')}&reason={quote('normalize: changed')}&row=0", "#panel article"),
        ("show=out&step=nonsense", "#problem"),
    ):
        page.run(f"location.hash = {json.dumps(place)}")
        page.wait(f"document.querySelector({json.dumps(sign)})")
        contrasts = page.run(CONTRASTS)
        assert len(contrasts) > 15
        assert [name for ratio, name in contrasts if ratio < 4.5] == []
    page.close()


def test_differences_side_by_side(serve, browser, tmp_path):
    """The words that differ are marked on both sides, and lead to the rows of both datasets."""
    out = tmp_path / "other"
    (tmp_path / "in.jsonl").write_text('{"text": "the first text"}\n{"text": "the same"}\n')
    make = gm.Recipe(
        sources={"a": steps.Read(read=str(tmp_path / "in.jsonl"))}, steps=[steps.Write(format="arrow")], output=str(out)
    )
    gm.run(make, backend="serial", progress=False)
    shutil.copytree(out, tmp_path / "before")
    (tmp_path / "in.jsonl").write_text('{"text": "the FIRST text"}\n{"text": "the same"}\n')
    gm.run(make, backend="serial", progress=False, overwrite=True)
    viewer = serve(tmp_path / "before", out)
    page = browser.open(viewer.url)
    assert read_page(page) == [0]
    page.press("j", "j")
    page.wait("document.querySelector('.differs')")
    assert page.run("[...document.querySelectorAll('.differs')].map(s => s.textContent)") == ["first", "FIRST"]
    page.run("document.querySelectorAll('.side a')[1].click()")
    page.wait("document.getElementById('name').value === 'other' && document.querySelector('#row-0')")
    assert page.problems == []
    page.close()


def test_pictures_in_the_browser(serve, browser, tmp_path):
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.hacked=1"><script>window.hacked=1</script></svg>'
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, content in (("1.png", photo(1, "PNG")), ("2.svg", svg), ("3.jpg", svg), ("4.gif", b"GIF89a" + svg)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    viewer = serve(tmp_path / "a.tar")
    page = browser.open(viewer.url)
    assert len(read_page(page)) == 4
    page.wait("document.querySelector('.grid img').naturalWidth === 48")
    assert page.run("document.querySelectorAll('.grid img').length") == 2  # the GIF says that it is one
    page.press("j", "j")
    page.wait("document.querySelector('#row-0 img')?.naturalWidth === 48")
    assert page.run("window.hacked") is None
    for row, kind in ((0, "image/png"), (3, "image/gif")):
        connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=20)
        connection.request("GET", f"/{viewer.token}/picture?row={row}&index=0")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == kind
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        answer.read()
        connection.close()
    assert ask(viewer, f"/{viewer.token}/picture?row=1&index=0")[0] == 400
    saved = tmp_path / "rows.html"
    saved.write_bytes(ask(viewer, f"/{viewer.token}/save?rows=0,3")[1])
    page.go(saved.as_uri())
    page.wait("document.querySelector('#row-0 img').naturalWidth === 48")
    assert page.run("document.querySelectorAll('article').length") == 2
    page.close()


def test_a_saved_page_needs_nothing_else(browser, web, tmp_path):
    saved = tmp_path / "page.html"
    command = [sys.executable, "-m", "gristmill", "view", str(web), "--save", str(saved), "--rows", "3,5-6"]
    subprocess.run(command, check=True, capture_output=True)
    page = browser.open(saved.as_uri())
    assert read_saved(page) == ["row-3", "row-5", "row-6"]
    assert page.run("document.querySelector('#row-3 pre').textContent") == open_dataset(web)[3]["text"]
    assert page.run("window.hacked") is None
    assert page.problems == []
    assert [url for url in page.requests if url != "about:blank"] == [saved.as_uri()]
    page.close()
    wrong = subprocess.run([*command[:-1], "7-99999"], capture_output=True, text=True)
    assert wrong.returncode == 2 or "Traceback" not in wrong.stderr


def test_a_notebook(browser, web, tmp_path):
    """The cell holds rows, also where the server cannot be reached; the address shows all of them."""
    view = gm.view(web, rows=3)
    try:
        (tmp_path / "cell.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{view._repr_html_()}")
        page = browser.open((tmp_path / "cell.html").as_uri())
        assert page.run("document.querySelector('a').href") == view.url
        assert view.url in repr(view)
        frame = page.run("document.querySelector('iframe').getAttribute('srcdoc')")
        (tmp_path / "frame.html").write_text(frame)
        page.go((tmp_path / "frame.html").as_uri())
        assert read_saved(page) == ["row-0", "row-1", "row-2"]
        page.close()
    finally:
        view.close()


def test_raw_files(serve, tmp_path):
    chat = {"messages": [{"role": "user", "content": EVIL}, {"role": "assistant", "content": "no"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + json.dumps(chat) + "\n")
    pq.write_table(pa.table({"text": ["two", "three"], "n": [1, 2]}), tmp_path / "b.parquet")
    viewer = serve(tmp_path / "a.jsonl", tmp_path / "b.parquet")
    assert count_rows(viewer.collections["files"]) == 4
    shown = [json.loads(ask(viewer, f"/{viewer.token}/record?row={number}")[1]) for number in range(4)]
    assert [row.get("text") for row in shown] == ["one", None, "two", "three"]
    assert [turn["role"] for turn in shown[1]["turns"]] == ["user", "assistant"]
    assert shown[3]["columns"] == {"n": "2"}
    hits = ask(viewer, f"/{viewer.token}/search?name=files&query=t%5Bwh%5D&kind=regex")[1].splitlines()
    assert [hit["number"] for line in hits if "number" in (hit := json.loads(line))] == [2, 3]


def test_the_command(web):
    process = subprocess.Popen(
        [sys.executable, "-m", "gristmill", "view", str(web), "--no-browser"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "SSH_CONNECTION": "1 2 3 4", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        address = process.stdout.readline() + process.stdout.readline()
        assert "http://127.0.0.1:" in address
        assert "ssh -L" in address + process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_browser_that_goes_elsewhere_leaves_no_traceback(serve, web, capfd):
    viewer = serve(web)
    at_once = struct.pack("ii", 1, 0)  # closes with a reset
    for request in ("GET /", f"GET /{viewer.token}/search?query=words HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", viewer.port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                connection.sendall(request.encode())
    assert ask(viewer, "http://[::1/")[0] == 403
    assert ask(viewer, f"/{viewer.token}/info")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("rows", [-1, 10_001])
def test_a_cell_of_a_notebook_holds_a_sensible_number_of_rows(tmp_path, rows):
    (tmp_path / "a.jsonl").write_text('{"text": "only"}\n')
    with pytest.raises(UsageError, match="rows must be from 0 to 10,000"):
        gm.view(tmp_path / "a.jsonl", rows=rows)


@pytest.mark.parametrize("show", ["quarantined", "dropped", "out · dropped"])
def test_other_records_are_saved(web, tmp_path, capsys, show):
    with pytest.raises(SystemExit) as end:
        main(["view", str(web), "--save", str(tmp_path / "page.html"), "--rows", "1", "--show", show])
    assert end.value.code == 0
    assert "holds 1 row\n" in capsys.readouterr().out
    saved = (tmp_path / "page.html").read_text()
    [row] = json.loads(re.search(r'id="data">(.*?)</script>', saved)[1])
    name = f"out · {show.split()[-1]}"
    assert row == json.loads(encode_plain(describe_safely(open_collections([web])[name], 1)))
    assert name in saved


def test_what_cannot_be_saved_is_named(web, tmp_path, capsys):
    save = ["--save", str(tmp_path / "page.html")]
    for words, told in (
        ([*save, "--show", "droped"], "out · dropped"),
        (["--show", "dropped"], "--save page.html"),
        ([*save, "--show", "dropped", "--rows", "99999"], "names no rows"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["view", str(web), *words])
        assert end.value.code == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_page_does_not_overwrite_what_it_shows(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "only"}\n')
    for name, code in (("a.jsonl", 2), ("b.html", 0)):
        with pytest.raises(SystemExit) as end:
            main(["view", str(path), "--save", str(tmp_path / name)])
        assert end.value.code == code
    assert path.read_text() == '{"text": "only"}\n'
    assert "holds 1 row\n" in capsys.readouterr().out
    (tmp_path / "a.tar").write_bytes(b"no tar" * 900)
    with pytest.raises(SystemExit):
        main(["view", str(tmp_path / "a.tar"), "--save", str(tmp_path / "b.html")])
    assert "note: a.tar is damaged" in capsys.readouterr().out
