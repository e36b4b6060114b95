"""The sliders of a report: against filters that really have the other threshold."""

import itertools
import json
import re

import pytest

import gristmill as gm
from gristmill import steps
from gristmill.report import thresholds
from gristmill.report.write import load_report
from gristmill.shards.dataset import open_dataset


def build(folder, name, **rules):
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(folder / "a.jsonl"))},
        steps=[steps.GopherQuality(**rules), steps.Write(format="jsonl")],
        output=str(folder / name),
        allow_empty=True,
    )
    return gm.run(recipe, backend="serial", progress=False)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thresholds")
    words = ["the", "of", "and", "mill", "extraordinarily", "a", "42", "#"]
    texts = [" ".join(words[(n * 7 + k * (n % 5 + 1)) % 8] for k in range(20 + n % 90)) for n in range(400)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    build(folder, "out")
    return folder


def count_kept(result):
    return result.books["web"][1].records_out


def test_one_rule_is_exact(corpus):
    [curves] = load_report(corpus / "out").curves
    for rule in (rule for rule in curves.rules if rule.name in ("min_words", "max_mean_word_length")):
        off = dict.fromkeys([other.name for other in curves.rules if other.name != rule.name])
        for position in (1, len(rule.thresholds) // 2):
            value = rule.thresholds[position]
            value = int(value) if rule.name == "min_words" else value
            result = build(corpus, f"{rule.name}-{position}", **{**off, rule.name: value})
            assert count_kept(result) == rule.documents[position], (rule.name, value)


def test_the_threshold_that_a_page_shows_keeps_what_it_says(corpus, browser):
    page = browser.open(f"file://{corpus}/out/report.html")
    shown = page.run(
        "[...document.querySelectorAll('[data-rule=min_mean_word_length], [data-rule=max_words]')].map((slider) => "
        "[0.2, 0.4, 0.5, 0.6, 0.8].map((place) => { slider.value = Math.round(place * slider.max); "
        "slider.dispatchEvent(new Event('input')); return slider.parentElement.querySelector('output').textContent; }))"
    )
    page.close()
    [curves] = load_report(corpus / "out").curves
    for rule, texts in zip(("max_words", "min_mean_word_length"), shown, strict=True):
        off = dict.fromkeys([other.name for other in curves.rules if other.name != rule])
        for number, text in enumerate(texts):
            value, kept = re.match(r"(\S+) keeps ([0-9,]+)", text).groups()
            result = build(corpus, f"shown-{rule}-{number}", **{**off, rule: json.loads(value)})
            assert count_kept(result) == int(kept.replace(",", "")), text


def test_the_page_counts_all_rules_together(corpus, browser):
    page = browser.open(f"file://{corpus}/out/report.html")
    assert page.problems == []
    [account] = [account for account in open_dataset(corpus / "out").manifest.books["web"] if account.step != "read"][
        :1
    ]
    assert int(page.run("document.querySelector('.together').dataset.passing")) == account.records_out
    [curves] = load_report(corpus / "out").curves
    [(number, rule)] = [(n, rule) for n, rule in enumerate(curves.rules) if rule.name == "min_words"]
    position = 3
    page.run(
        f"(() => {{ const s = document.getElementById('slider-0-{number}'); s.value = {position}; "
        "s.dispatchEvent(new Event('input')); })()"
    )
    shown = page.run(f"document.getElementById('slider-0-{number}').parentElement.querySelector('output').textContent")
    assert f"keeps {rule.documents[position]:,} " in shown
    result = build(corpus, "both", min_words=int(rule.thresholds[position]))
    assert int(page.run("document.querySelector('.together').dataset.passing")) == count_kept(result)
    assert page.run("document.querySelector('.changes code').textContent") == (
        f"gopher_quality: {{min_words: {rule.thresholds[position]:g}}}"
    )
    page.run("document.querySelector('.changes button').click()")
    assert page.run("document.querySelector('.changes').hidden")
    assert int(page.run("document.querySelector('.together').dataset.passing")) == account.records_out
    page.run(f"document.getElementById('slider-0-{number}').value = {position}")
    page.run(f"document.getElementById('slider-0-{number}').focus()")
    page.press("ArrowRight")
    assert page.run(f"document.getElementById('slider-0-{number}').value") == str(position + 1)
    page.close()


def test_a_sample_has_an_error_that_holds(corpus):
    dataset = open_dataset(corpus / "out")
    [exact] = thresholds.find_curves(dataset)
    [sampled] = thresholds.find_curves(dataset, max_sample=100)
    assert sampled.sample_documents == 100
    for by_sample, by_all in zip(sampled.rules, exact.rules, strict=True):
        kept = dict(zip(by_all.thresholds, by_all.documents, strict=True))
        both = [(t, n) for t, n in zip(by_sample.thresholds, by_sample.documents, strict=True) if t in kept]
        assert (by_all.threshold, kept[by_all.threshold]) in both
        assert all(kept[threshold] == number for threshold, number in both)  # one rule is counted in all documents


def test_bars_and_texts_of_a_threshold(corpus, browser):
    [curves] = load_report(corpus / "out").curves
    rule = next(rule for rule in curves.rules if rule.name == "min_words")
    texts = [json.loads(line)["text"] for line in (corpus / "a.jsonl").read_text().splitlines()]
    lengths = [len(text.split()) for text in texts]
    counted = [sum(low <= n < high for n in lengths) for low, high in itertools.pairwise(rule.thresholds)]
    assert [low - high for low, high in itertools.pairwise(rule.documents)] == counted
    steps_between = {round(high - low) for low, high in itertools.pairwise(rule.thresholds[1:-1])}
    assert max(steps_between) <= 2  # even on the slider
    shown = {rule.name: rule for rule in curves.rules if rule.examples}
    assert 1 <= len(shown) <= 4
    near = shown["min_words"].examples
    assert [entry.value for entry in near] == sorted(entry.value for entry in near)
    below = sorted((n for n in lengths if n < 50), reverse=True)[:3]
    assert [entry.value for entry in near if not entry.is_kept] == below[::-1]
    assert [entry.value for entry in near if entry.is_kept] == sorted(n for n in lengths if n >= 50)[:3]
    assert all(len(entry.text.split()) <= entry.value for entry in near)
    page = browser.open(f"file://{corpus}/out/report.html")
    bar = "document.querySelector('[data-rule=min_words]').parentElement"
    assert "polygon" in page.run(f"{bar}.querySelector('.histogram').style.clipPath")
    before = page.run(f"{bar}.style.getPropertyValue('--at')")
    page.run("document.querySelector('[data-rule=min_words]').focus()")
    page.press("ArrowRight")
    assert page.run(f"{bar}.style.getPropertyValue('--at')") != before
    page.close()


def test_languages_with_separate_thresholds(tmp_path, browser):
    lines = [
        {
            "text": f"{'der die und' if n % 3 else 'the of and'} wort {n} " * (n % 9 + 1),
            "language": "de" if n % 3 else "en",
        }
        for n in range(90)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = gm.Recipe(
        sources={"web": steps.Read(read=str(tmp_path / "a.jsonl"), columns=["language"])},
        steps=[
            steps.GopherQuality(
                min_words=10, min_stop_words=None, min_mean_word_length=None, by_language={"de": {"min_words": 30}}
            ),
            steps.Write(format="jsonl"),
        ],
        output=str(tmp_path / "out"),
    )
    gm.run(recipe, backend="serial", progress=False)
    curves = load_report(tmp_path / "out").curves
    assert {(entry.language, entry.documents) for entry in curves} == {("", 30), ("de", 60)}
    [rule] = [rule for entry in curves if entry.language == "de" for rule in entry.rules if rule.name == "min_words"]
    words = [len(line["text"].split()) for line in lines if line["language"] == "de"]
    assert (rule.threshold, rule.documents[rule.position]) == (30, sum(n >= 30 for n in words))
    page = browser.open(f"file://{tmp_path}/out/report.html")
    visible = "[...document.querySelectorAll('.thresholds')].filter(b => !b.hidden).map(b => b.dataset.documents)"
    assert page.run(visible) == ["30"]
    choose = "s.value = '1'; s.dispatchEvent(new Event('change'));"
    page.run(f"(() => {{ const s = document.querySelector('.language select'); {choose} }})()")
    assert page.run(visible) == ["60"]
    page.close()
