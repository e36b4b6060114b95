"""A chat template is a foreign program: it costs a clear error or one record, never the process that plans or runs."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from gristmill_testing.chat_templates import CHATML
from gristmill_testing.rendering import batch
from gristmill_testing.small_tokenizers import trained

import gristmill as gm
from gristmill.cli.main import command_line
from gristmill.core.errors import OutOfMemoryError, UsageError
from gristmill.engine.tasks import Task, run_tasks
from gristmill.pipeline.inspecting.explain import explain
from gristmill.steps import Read, Render, Write
from gristmill.steps.render import render as render_chats
from gristmill.text.chats import jinja_environment
from gristmill.text.chats import templates as jinja_door
from gristmill.text.chats.jinja_environment import TemplateLimits, TemplateTimeout

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(300)]

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SLOW = {
    "constant power": "{{ 9**(9**9) }}",
    "power at render time": "{% set n = messages | length + 9 %}{{ n**(n**n) }}",
    "loops": LOOP,
    "large lists": "{% for n in range(99999) %}{% set x = [messages] * 99999999 %}{{ x | length }}{% endfor %}",
}
LARGE = {
    "constant width": "{{ 'a'|center(10**10) }}",
    "constant product": "{{ 'a' * (10**10) }}",
    "width at render time": "{{ 'a'|center(10**9 * (messages | length + 9)) }}",
    "growing namespace": (
        "{% set ns = namespace(text='a') %}{% for n in range(60) %}{% set ns.text = ns.text ~ ns.text %}{% endfor %}"
    ),
}
FAILING = {
    "recursion": "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}",
    "huge range": "{% for n in range(10**12) %}{% endfor %}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if true %}" * 200 + "x" + "{% endif %}" * 200,
}
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "chats.jsonl").write_text(json.dumps(CHAT) + "\n")
    home = os.getpid()
    real = jinja_door.ChatTemplate.__init__

    def not_here(*args, **kwargs):
        assert os.getpid() != home, "a foreign template was compiled in the parent"
        real(*args, **kwargs)

    monkeypatch.setattr(jinja_door.ChatTemplate, "__init__", not_here)  # of this process; workers import their own
    return tmp_path


def recipe_of(folder, template, read=None):
    (folder / "hostile.jinja").write_text(template)
    return gm.Recipe(
        sources={"chats": Read(read=read or f"{folder}/chats.jsonl")},
        steps=[Render(template=f"{folder}/hostile.jinja"), Write(format="jsonl")],
        output=str(folder / "out"),
    )


def refused(call, folder):
    memory = psutil.Process().memory_info().rss
    with pytest.raises(UsageError) as caught:
        call()
    assert "hostile.jinja" in caught.value.message
    assert psutil.Process().memory_info().rss < memory + (500 << 20)
    assert not (folder / "out").exists()


@pytest.mark.parametrize("name", {**SLOW, **LARGE, **FAILING})
def test_every_kind_meets_its_limit(name):
    """In this process, with narrow limits, which they must not outlive."""
    memory = psutil.Process().memory_info().rss
    ends = (UsageError, jinja_door.TemplateError) if name in FAILING else (TemplateTimeout, MemoryError)
    with TemplateLimits(max_seconds=0.2, max_growth_bytes=200 << 20), pytest.raises(ends):
        jinja_door.ChatTemplate({**SLOW, **LARGE, **FAILING}[name], {}).render([])
    assert psutil.Process().memory_info().rss < memory + (400 << 20)
    assert signal.getitimer(signal.ITIMER_REAL) == signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_memory_is_limited_without_proc(monkeypatch):
    monkeypatch.setattr(jinja_environment, "_measure_data_bytes", partial(Path.read_text, Path("/missing/status")))
    with TemplateLimits(max_growth_bytes=200 << 20), pytest.raises(MemoryError):
        jinja_door.ChatTemplate(LARGE["constant width"], {}).render([])


@pytest.mark.parametrize("name", ["constant power", "loops"])
def test_time_is_limited_while_planning(folder, name):
    refused(lambda: gm.run(recipe_of(folder, SLOW[name] + CHATML), timeout=2, progress=False), folder)


@pytest.mark.parametrize("name", ["constant width", "growing namespace", "recursion", "deep nesting"])
def test_memory_is_limited_while_planning(folder, name):
    refused(lambda: gm.plan(recipe_of(folder, {**LARGE, **FAILING}[name] + CHATML)), folder)


@pytest.mark.full
def test_threads_do_not_render_here_either(folder):
    refused(lambda: gm.run(recipe_of(folder, LARGE["constant width"]), backend="threads", progress=False), folder)
    result = gm.run(recipe_of(folder, CHATML), backend="threads", progress=False)
    assert len(result.dataset()) == 1


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_the_serial_backend_renders_here_under_the_same_limits(tmp_path, monkeypatch):
    (tmp_path / "chats.jsonl").write_text(json.dumps(CHAT) + "\n")
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *_, **__: pytest.fail("a process was started"))
    refused(lambda: gm.run(recipe_of(tmp_path, LARGE["constant width"]), backend="serial", progress=False), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TemplateLimits.__init__, "__defaults__", (0.2, 2 << 30))
        refused(lambda: gm.run(recipe_of(tmp_path, LOOP + CHATML), backend="serial", progress=False), tmp_path)
    assert len(gm.run(recipe_of(tmp_path, CHATML), backend="serial", progress=False).dataset()) == 1
    assert signal.getitimer(signal.ITIMER_REAL) == signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.full
def test_no_other_thread_renders_here(folder):
    """Only the main thread gets the signals that enforce limits. `folder` lets this process compile no template."""
    with ThreadPoolExecutor(1) as thread:
        run = partial(gm.run, recipe_of(folder, CHATML), backend="serial", progress=False)
        assert len(thread.submit(run).result().dataset()) == 1


@pytest.mark.full
def test_records_from_python(folder):
    refused(lambda: gm.plan(recipe_of(folder, LARGE["constant width"], [CHAT])), folder)
    assert len(gm.run(recipe_of(folder, CHATML, [CHAT]), progress=False).dataset()) == 1


@pytest.mark.full
def test_template_check(folder):
    trained(folder / "tokenizer", specials=("<|im_start|>", "<|im_end|>"))
    (folder / "hostile.jinja").write_text(LARGE["constant width"] + CHATML)
    arguments = ["check", str(folder / "tokenizer"), str(folder / "chats.jsonl")]
    done = CliRunner().invoke(command_line, ["template", *arguments, "--template", str(folder / "hostile.jinja")])
    assert isinstance(done.exception, UsageError)
    assert "hostile.jinja" in done.exception.message


@pytest.mark.full
def test_explain(folder):
    found = explain(recipe_of(folder, CHATML), f"{folder}/chats.jsonl")
    assert [step.step for step in found.steps] == ["render"]
    assert found.leaves_at is None


def test_built_in_templates_run_anywhere(tmp_path):
    recipe = gm.Recipe(
        sources={"chats": Read(read=[CHAT])},
        steps=[Render(template="chatml"), Write(format="jsonl")],
        output=str(tmp_path / "out"),
    )
    assert len(gm.run(recipe, backend="serial", progress=False).dataset()) == 1


def test_a_record_over_its_memory_costs_itself(folder):
    """The sample has it too: the plan leaves it to the run."""
    lines = [{**CHAT, "messages": [{"role": "user", "content": f"{n}"}, CHAT["messages"][1]]} for n in range(20)]
    lines[7]["messages"][0]["content"] = "large"
    (folder / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    template = "{% if messages[0].content == 'large' %}{{ 'a'|center(10**9 * (messages|length + 9)) }}{% endif %}"
    result = gm.run(recipe_of(folder, template + CHATML), workers=1, progress=False)
    assert len(result.dataset()) == 19
    assert result.manifest.quarantine.counts == {"chats": {"out_of_memory": 1}}
    assert result.manifest.environment_dependent


@pytest.mark.full
def test_time_is_limited_a_record(tmp_path, monkeypatch):
    """Without a death: a template that runs Python code is interrupted between two steps of it."""
    (tmp_path / "loop.jinja").write_text("{% if messages[0].content == 'loop' %}" + LOOP + "{% endif %}" + CHATML)
    answer = {"role": "assistant", "content": "Hello"}
    chats = [{"messages": [{"role": "user", "content": word}, answer]} for word in ("a", "loop", "b")]
    monkeypatch.setattr(render_chats, "TemplateLimits", lambda: TemplateLimits(max_seconds=0.2))
    step = Render(template=str(tmp_path / "loop.jinja")).resolve(".")
    applied = step.load().apply(batch(*chats), 0)
    assert [bad.reason for bad in applied.quarantined] == ["timeout"]
    assert applied.batch.num_rows == 2


@pytest.mark.full
def test_waiting_does_not_count_as_time_of_the_template():
    """As on a machine that is busy with other work: the timer fires, but little CPU time has passed."""
    limits = TemplateLimits(max_seconds=0.2)
    looks = []
    real = limits._look
    limits._look = lambda *args: (looks.append(args), real(*args))
    with limits:
        while not looks:
            signal.pause()


@pytest.mark.full
def test_one_long_call_ends_its_worker_as_a_timeout():
    """Nothing can interrupt it, so the kernel does, by the worker's own limit of CPU time."""

    def compute(task, context):
        limits = TemplateLimits(max_seconds=-4.5)  # and 5 seconds of grace
        with limits:
            return sum(range(10**12))

    with pytest.raises(gm.errors.ItemTimeoutError):
        list(run_tasks(compute, [Task("power", None)], workers=1, retries=0, progress=False))


@pytest.mark.full
def test_memory_is_watched_where_the_kernel_does_not_limit_it():
    def grow(task, context):
        kept = []
        while True:
            kept.append(bytearray(b"x") * (8 << 20))

    with pytest.raises(OutOfMemoryError):
        list(run_tasks(grow, [Task("growing", None)], workers=1, max_growth_bytes=200 << 20, progress=False))
