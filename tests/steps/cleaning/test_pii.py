"""What is replaced, what stays, and that twice is once."""

import contextlib
import ipaddress
import json
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from gristmill_testing.agent_logs import claude_session
from hypothesis import given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import steps
from gristmill.core.errors import UsageError
from gristmill.core.records import documents, texts
from gristmill.steps import Pii
from gristmill.steps.cleaning.pii import DEFAULT_PLACEHOLDERS

ROOT = Path(__file__).parents[3]

ALL = ["email", "ip", "phone", "key"]


def clean(text, **keys):
    return texts(Pii(**keys).apply(documents([text]), seed=0).batch)[0]


@pytest.mark.parametrize(
    "address",
    [
        "ann@example.com",
        "first.last@sub.example.co.uk",
        "a+b@example-one.org",
        "1234567890@example.name",
        "O'Neil@x.ie",
        "jürgen.müller@straße.example.de",
        "mu\u0308ller@example.org",
        "почта@пример.рф",
        "ελένη@example.gr",
    ],
)
def test_mail_addresses(address):
    assert clean(f"write to {address}.") == "write to <EMAIL>."
    assert clean(f"<{address}>;mailto:{address}") == "<<EMAIL>>;mailto:<EMAIL>"


@pytest.mark.parametrize(
    "text",
    ["a@b", "@user", "me@", "plain", "x @ y.org", "a@-b.org", "a@b..org", "user@host:22", '"quoted"@b', "1.5@2.7"],
)
def test_no_mail_addresses(text):
    assert clean(text) == text


def test_addresses_behind_dots():
    assert clean("Mail: .ann@example.com; (.....ann.lee@example.com)") == "Mail: .<EMAIL>; (.....<EMAIL>)"
    assert clean("very.”odd”.ann@example.com") == "very.”odd”.<EMAIL>"


def test_addresses_between_letters_of_scripts_without_spaces():
    assert clean("请联系ann@example.com谢谢, ann@example.com으로") == "请联系<EMAIL>谢谢, <EMAIL>으로"


@pytest.mark.parametrize("address", ["8.8.8.8", "163.36.107.25", "2001:4860:4860::8888", "2a00:1450:4001:81b::200e"])
def test_public_addresses(address):
    assert clean(f"from {address}, port 80") == "from <IP>, port 80"
    assert clean(f".{address}") in (".<IP>", f".{address}")


@pytest.mark.parametrize(
    "text",
    [
        *("10.0.0.1", "127.0.0.1", "192.168.1.2", "172.16.0.9", "0.1.2.3", "999.9.9.9", "108.0.0.01", "1.2.3.4.5"),
        *("v1.2.3.4x", "12:30:45", "::1", "fe80::1", "std::vector", "a:b:c", "1.2.3", "2001:db8::1"),
        *("A::f", "void B::f() { C::c(); }", "fe00::0", "ff02::1", "224.0.0.251", "12:34::3a53"),
    ],
)
def test_other_addresses_and_numbers_stay(text):
    assert clean(text) == text


@pytest.mark.parametrize(
    "number",
    ["+1 415 555 2671", "+1.415.555.2671", "+49 (30) 901820", "+442071838750", "415-555-2671", "(415) 555-2671"],
)
def test_phones_on_request(number):
    assert clean(f"call {number} now", kinds=["phone"]) == "call <PHONE> now"
    assert clean(f"call {number} now") == f"call {number} now"


@pytest.mark.parametrize(
    "text", ["2024-11-16", "1 + 2", "555-1234", "ISBN 978-3-16-148410-0", "+5 points", "12345678901"]
)
def test_other_numbers_are_no_phones(text):
    assert clean(text, kinds=["phone"]) == text


@pytest.mark.parametrize(
    "key",
    [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "sk-" + "abc123" * 6,
        "hf_" + "aB" * 17,
        "xoxb-" + "1234567890-abcdef",
        "eyJhbGciOiJI" + ".eyJzdWIiOiIx" + ".SflKxwRJSMeKKF2Q",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/=\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_keys_on_request(key):
    assert clean(f'key = "{key}"', kinds=["key"]) == 'key = "<KEY>"'
    assert clean(key) == key


def test_counts_by_kind_and_changed_rows():
    applied = Pii(kinds=ALL).apply(documents(["a@b.org c@d.org 8.8.8.8", "clean", "8.8.4.4"]), seed=0)
    assert applied.counters == {"replaced:email": 2, "replaced:ip": 2}
    assert applied.changed_rows.tolist() == [True, False, True]


def test_own_placeholders():
    assert clean("a@b.org", placeholders={"email": "[mail]"}) == "[mail]"
    with pytest.raises(UsageError, match="would itself be replaced"):
        Pii(placeholders={"email": "someone@example.com"})
    with pytest.raises(UsageError):
        Pii(kinds=["mail"])


ADDRESS = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
VERSION_CONTEXTS = """Version {}
section {} says
see chapter {}.
§ {}
OID {}
v{}
{}-rc1
{}+dfsg
{} or later
2.5 {} 7.25
x=={}
Agent/{} (x)
tool-{}.tar.gz
libx.so.{}
nginx:{}
org.acme:core:{}
cpe:2.3:a:apache:log4j:{}:*:*:*:*:*:*:*
"version": "{}"
<FileVersion>{}</FileVersion>
from version 1.2.3.4 to {}
update V8 to {}
Bump nginx from 1.2.3 to {}"""
HOST_CONTEXTS = """ping <>
Host: <>
peer <> is down
client_ip=<>
http://<>/login
ssh://ann@<>
connect to [<>]
<>:8080
<> port 22"""


@settings(deadline=None)
@given(ADDRESS, st.sampled_from(VERSION_CONTEXTS.split("\n")))
def test_versions_and_sections_are_no_addresses(number, context):
    text = context.format(number)
    assert clean(text, kinds=ALL) == text


@settings(deadline=None)
@given(ADDRESS, st.sampled_from(HOST_CONTEXTS.split("\n")))
def test_public_addresses_of_named_hosts(address, context):
    is_host = address.is_global and not address.is_multicast and not str(address).endswith(".0")
    assert clean(context.replace("<>", str(address))) == context.replace("<>", "<IP>" if is_host else str(address))


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3).map(lambda value: f"{value:+.10f}"), min_size=1, max_size=5),
    st.lists(st.integers(-(10**12), 10**12).map(lambda value: f"{value:+}"), min_size=2, max_size=5),
    st.sampled_from([", ", " ", "; ", "\n", " * "]),
)
def test_measured_values_are_no_phones(decimals, integers, separator):
    text = f"[{separator.join(decimals)}] [{', '.join(integers)}]"
    assert clean(text, kinds=ALL) == text


@settings(deadline=None)
@given(st.integers(10, 10**6), st.integers(0, 999), st.integers(0, 10**6), st.sampled_from(["bytes", "points", "rows"]))
def test_values_in_tables_and_before_units_are_no_phones(whole, thousandths, integer, unit):
    text = f"x +{whole}.{thousandths:03} {integer}\nsum: +{whole * 10**4} {unit}"
    assert clean(text, kinds=["phone"]) == text


PIECES = st.sampled_from(
    [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "version ",
        "a@b.org",
        "8.8.8.8",
        "+49 30 901820",
        "415-555-2671",
        "sk-" + "x1" * 12,
        "::",
        "2a00::1",
        ".",
        "@",
        "-",
        " ",
        "1",
        "x",
    ]
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_twice_is_once(text):
    once = clean(text, kinds=ALL)
    assert clean(once, kinds=ALL) == once


@pytest.mark.parametrize("text", ["a" * 200_000 + "@", "1." * 100_000, "a@" + "b-" * 100_000, "+1" + " 1" * 100_000])
def test_hostile_texts_end(text):
    assert len(clean(text, kinds=ALL)) > 0


MARKED = re.compile("⟦([a-z]+):(.*?)⟧")


def read_list():
    lines = (Path(__file__).parent / "pii_list.txt").read_text(encoding="utf-8").splitlines()
    return [line.replace("↵", "\n") for line in lines if not line.startswith("#")]


def find_replaced(text):
    """Return what each kind replaces, as the list marks it."""
    replaced = Counter()
    for kind in ALL:
        parts = clean(text, kinds=[kind]).split(DEFAULT_PLACEHOLDERS[kind])
        values = re.fullmatch("(.+?)".join(map(re.escape, parts)), text, re.DOTALL).groups()
        replaced.update((kind, value) for value in values)
    return replaced


def test_precision_and_recall_on_the_list_are_those_of_the_page():
    num_marked, num_replaced, num_both, wrong = Counter(), Counter(), Counter(), []
    for line in read_list():
        marked = Counter(MARKED.findall(line))
        replaced = find_replaced(MARKED.sub(r"\2", line))
        for counter, pairs in ((num_marked, marked), (num_replaced, replaced), (num_both, marked & replaced)):
            for (kind, _), count in pairs.items():
                counter[kind] += count
        if marked != replaced:
            wrong.append((line, dict(replaced)))
    rows = []
    for kind in ALL:
        precision, recall = num_both[kind] / num_replaced[kind], num_both[kind] / num_marked[kind]
        rows.append(f"| {kind} | {num_marked[kind]} | {precision:.2f} | {recall:.2f} |")
    page = (ROOT / "docs/reference/cleaning.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in page] == [], wrong


KEYS = st.sampled_from(
    [
        "ghp_" + "a1B2" * 9,
        "sk-" + "Zx9_" * 8,
        "AKIA" + "ABCD" * 4,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE" + "ab12" * 12 + "\n-----END RSA PRIVATE KEY-----",
        "mira@mill.example.org",
    ]
)
WORDS = st.text(st.sampled_from('ab "\\\n/é{}[]:,'), max_size=12)


@st.composite
def planted_chats(draw):
    """A chat with a call, and a secret in one of its strings, in plain JSON or in JSON in a string."""
    secret = draw(KEYS)
    value = draw(WORDS) + " " + secret + " " + draw(WORDS)
    for _ in range(draw(st.integers(0, 3))):
        value = draw(
            st.sampled_from(
                [[1, value], {"command": value, "n": None}, {"a": {"b": [value]}}, json.dumps({"command": value})]
            )
        )
    arguments = {"command": value} if draw(st.booleans()) else json.dumps([value])
    call = {"id": "x", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "x", "content": draw(st.sampled_from(["ok", f"PASSWORD={secret}"]))}
    asked = {"role": "user", "content": [{"type": "text", "text": "Use it."}]}
    reasoned = {"role": "assistant", "content": "", "reasoning_content": f"It is {secret}.", "tool_calls": [call]}
    messages = [asked, reasoned, result]
    chat = {"id": 2**70, "messages": json.dumps(messages) if draw(st.booleans()) else messages}
    return secret, chat


def chat_batch(*records, ensure_ascii=False):
    lines = [json.dumps(record, ensure_ascii=ensure_ascii).encode() for record in records]
    origins = documents(["x"] * len(records)).column("origin")
    return pa.record_batch({"origin": origins, "record": pa.array(lines, pa.large_binary())})


def list_strings(value):
    if isinstance(value, str):
        yield value
        with contextlib.suppress(ValueError):
            inner = json.loads(value)
            if isinstance(inner, (dict, list)):
                yield from list_strings(inner)
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from list_strings(inner)


@settings(max_examples=200, deadline=None)
@given(planted=planted_chats(), ensure_ascii=st.booleans())
def test_a_secret_anywhere_in_a_chat_is_replaced(planted, ensure_ascii):
    secret, chat = planted
    batch = chat_batch({"id": 1, "messages": []}, chat, ensure_ascii=ensure_ascii)
    result = Pii(kinds=["key", "email"]).apply(batch, seed=0)
    plain, line = result.batch.column("record").to_pylist()
    assert plain == batch.column("record")[0].as_py()
    cleaned = json.loads(line)
    assert cleaned["id"] == chat["id"]
    assert not [text for text in list_strings(cleaned) if secret in text]
    assert sum(result.counters.values()) >= 2
    again = Pii(kinds=["key", "email"]).apply(result.batch, seed=0)
    assert again.batch.equals(result.batch)


def test_chats_in_columns_are_searched_too():
    messages = [[{"role": "user", "content": "Mail ann@example.com"}], [{"role": "user", "content": "No."}]]
    origins = documents(["x", "y"]).column("origin")
    batch = pa.record_batch({"origin": origins, "messages": pa.array(messages), "note": ["to bob@example.com", None]})
    result = Pii().apply(batch, seed=0)
    assert result.batch.schema == batch.schema
    assert result.batch.column("messages")[0][0]["content"].as_py() == "Mail <EMAIL>"
    assert result.batch.column("note").to_pylist() == ["to <EMAIL>", None]
    assert result.counters == {"replaced:email": 2}


def test_pii_before_render_reaches_arguments_and_results(tmp_path):
    key = "ghp_" + "a1B2" * 9
    log = claude_session()
    log.call("t2", command=f"curl -H 'token: {key}'")
    log.result("t2", f"{key} is wrong")
    log.answer({"type": "text", "text": "Done."})
    (tmp_path / "a.jsonl").write_bytes(log.data())
    template = "{%- for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}<|im_end|>{% endfor %}"
    (tmp_path / "t.jinja").write_text(template + "{% if add_generation_prompt %}<assistant>{% endif %}")
    recipe = gm.Recipe(
        sources={"sessions": steps.Read(read=str(tmp_path / "*.jsonl"), format="agent")},
        steps=[Pii(kinds=["key"]), steps.Render(template=str(tmp_path / "t.jinja")), steps.Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    result = gm.run(recipe, backend="serial")
    [row] = result.dataset()
    assert key not in json.dumps(row)
    assert row["text"].count("<KEY>") == 2
    assert {account.step: account.counters for account in result.manifest.books["sessions"]}["pii"] == {
        "replaced:key": 2
    }
