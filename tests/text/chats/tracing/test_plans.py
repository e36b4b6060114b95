"""Templates made at random, traced and rendered by Jinja: the same texts, whatever the order of the records."""

import random

import pytest

from gristmill.core.errors import UsageError
from gristmill.text.chats.templates import ChatTemplate, TemplateError
from gristmill.text.chats.tracing.template_tracer import TemplateTracer

WORDS = ["", "a", "ab", " a ", "x-y", "</think>", "A\n", "ü", "12", "a-b-a", '"', "user"]
ROLES = ["system", "user", "assistant", "tool"]


class TemplateMaker:
    """Writes templates of the constructs that chat templates are made of, and of others."""

    def __init__(self, seed):
        self._rng = random.Random(seed)

    def template(self):
        before, behind = self._body(1, ["messages[0].content"]), self._body(1, ["messages[-1].content"])
        inside = self._body(3, ["m.content", "m['content']", "m.get('content')", "m.role", "messages[0].content"])
        return (
            "{% macro say(x, y='') %}<{{ x }}{{ y }}>{% endmacro %}{% set ns = namespace(s='', n=0) %}"
            f"{before}{{% for m in messages %}}{inside}{{% endfor %}}{behind}{{{{ ns.s }}}}{{{{ ns.n }}}}"
        )

    def _constant(self):
        return repr(self._rng.choice(WORDS))

    def _text(self, depth, names):
        choose = self._rng.choice
        if depth <= 0:
            return choose([*names, *names, self._constant(), "ns.s"])
        text, other = self._text(depth - 1, names), self._text(depth - 2, names)
        constant, number = self._constant(), self._rng.randint(-2, 3)
        return choose(
            [
                f"{text}|trim",
                f"({text}).strip({choose(['', constant])})",
                f"({text})|{choose(['upper', 'lower', 'string', 'title', 'capitalize', 'first', 'reverse', 'e'])}",
                f"({text} ~ {other})",
                f"({text} + {other})",
                f"({text}).split({constant})[{number}]",
                f"({text}).replace({constant}, {choose([constant, other])})",
                f"({text})[{number}:]",
                f"({text})[{number}]",
                f"({text})|replace({constant}, 'r')",
                f"({text})|default({constant}, true)",
                f"({text})|tojson",
                f"[{text}, {other}]|join({constant})",
                f"{constant}.join([{text}, {other}])",
                f"say({text}, {other})",
                f"({text} if {self._question(depth - 1, names)} else {other})",
                f"({text})|length",
                f"({text}).rpartition({constant})|{choose(['first', 'last'])}",
                f"'%s' % ({text})",
                f"({text}).lstrip().rstrip({constant})",
                f"messages|map(attribute='content')|{choose(['join', 'list|length', 'first', 'last'])}",
                f"({text}).find({constant})",
                f"({text})|int",
                f"({text})|list|join('.')",
            ]
        )

    def _question(self, depth, names):
        choose = self._rng.choice
        text, constant = self._text(depth, names), self._constant()
        return choose(
            [
                f"({text})",
                f"{constant} in ({text})",
                f"({text}) in {constant}",
                f"({text}) not in [{constant}, 'a']",
                f"({text}) == {constant}",
                f"({text}) != messages[0].content",
                f"({text}).{choose(['startswith', 'endswith'])}({constant})",
                f"({text}) is {choose(['string', 'mapping', 'none', 'defined', 'iterable', 'upper', 'number'])}",
                f"({text})|length {choose(['>', '<', '==', '>=', '!='])} {self._rng.randint(0, 4)}",
                f"not ({text}) or m is defined and m.role == 'user'",
                f"ns.n > {self._rng.randint(0, 3)}",
                f"messages|selectattr('content', 'equalto', {constant})|list|length",
                f"({text}) > {constant}",
                f"({text}).isdigit()",
            ]
        )

    def _body(self, num_statements, names):
        return "".join(self._statement(names) for _ in range(self._rng.randint(1, num_statements)))

    def _statement(self, names):
        choose = self._rng.choice
        text, question = self._text(self._rng.randint(0, 2), names), self._question(self._rng.randint(0, 1), names)
        return choose(
            [
                f"{{{{ {text} }}}}",
                f"{{{{ {text} }}}}",
                f"{{% if {question} %}}{{{{ {text} }}}}{{% else %}}-{{% endif %}}",
                f"{{% set v = {text} %}}{{{{ v }}}}{{% if v %}}+{{% endif %}}",
                f"{{% set v %}}<{{{{ {text} }}}}>{{% endset %}}{{{{ v|trim }}}}",
                f"{{% set ns.s = ns.s ~ ({text}) %}}",
                f"{{% set ns.n = ns.n + 1 if {question} else ns.n %}}",
                f"{{% for p in ({text}).split('-') %}}[{{{{ p }}}}{{{{ loop.last }}}}]{{% endfor %}}",
                f"{{% filter upper %}}{{{{ {text} }}}}{{% endfilter %}}",
                f"{{% call say({text}) %}}{{% endcall %}}",
                "{% if loop is defined and loop.last %}!{% endif %}",
            ]
        )


def records(rng):
    """Conversations of a few outlines, many of each."""
    sequences = [[rng.choice(ROLES) for _ in range(rng.randint(1, 4))] for _ in range(2)]
    for _ in range(24):
        yield [{"role": role, "content": rng.choice(WORDS)} for role in rng.choice(sequences)]


@pytest.mark.parametrize("first_seed", range(0, 240, 40))
def test_plans_write_what_jinja_writes(first_seed):
    num_texts = num_traced = 0
    for seed in range(first_seed, first_seed + 40):
        source = TemplateMaker(seed).template()
        try:
            template = ChatTemplate(source, {})
        except UsageError:
            continue
        tracer = TemplateTracer(source, {}, None, None, num_compared=0)
        for messages in records(random.Random(seed)):
            tracer.begin_record()
            text = tracer.render(messages, None, {}, lambda: pytest.fail("not asked for"))
            try:
                expected = template.render(messages)
            except TemplateError:
                assert text is None, source
                continue
            assert text in (None, expected), source
            num_texts += 1
            num_traced += text is not None
    assert num_traced > num_texts / 6, "the generator must mostly make templates that can be traced"
