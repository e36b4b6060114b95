"""What limits the number of workers, and how much memory a run will need.

What a notebook shows of a plan and of a result: short, whole, and harmless.
"""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from gristmill_testing.small_tokenizers import trained

from gristmill import steps
from gristmill.core.quantities import count_cells, format_bytes
from gristmill.core.recipe import Recipe
from gristmill.engine import machine as resources
from gristmill.pipeline.planning import outline as expected_memory
from gristmill.pipeline.planning.outline import ExpectedMemory, Outline, expect_memory
from gristmill.pipeline.planning.plan import make_plan
from gristmill.pipeline.planning.units import UnitLayout
from gristmill.readers.read import Read
from gristmill.steps.deduplicate.deduplicate import Deduplicate
from gristmill.steps.language import Language
from gristmill.steps.length import Length
from gristmill.steps.mix import Mix
from gristmill.steps.pack import Pack
from gristmill.steps.sampling import Shuffle
from gristmill.steps.write import Write

MEMORY = ExpectedMemory(num_workers=2, limited_by="cores", worker_bytes=100 << 20, parent_bytes=50 << 20)
LINE = '{"text": "a document of some words"}\n'


def _outline(folder, *steps, read="*.jsonl", layout=UnitLayout(), **keys):
    recipe = Recipe(sources={"web": Read(read=read)}, steps=steps, output="out", folder=str(folder), **keys)
    return make_plan(recipe, layout=layout).outline()


def _sources(outline, notes_by_name):
    [source] = outline.sources
    return [replace(source, name=name, notes=notes) for name, notes in notes_by_name.items()]


def _list_notes(outline, *, details=False):
    lines = outline.describe(details=details).splitlines()
    return [line.partition("note: ")[2] for line in lines if "note: " in line]


def test_each_note_is_printed_once_with_its_sources(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path)
    sources = _sources(outline, {name: ("for all", f"only {name}", "engine fast: why") for name in ("web", "books")})
    assert _list_notes(replace(outline, sources=sources)) == ["for all", "web: only web", "books: only books"]
    assert "engine fast: why" in _list_notes(replace(outline, sources=sources), details=True)


def test_of_notes_that_differ_in_their_numbers_the_largest_are_printed(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path)
    sources = _sources(outline, {f"s{n}": (f"{n}.5% of 1,000 are lost",) for n in range(30)})
    notes = _list_notes(replace(outline, sources=sources))
    assert [note.partition("%")[0] for note in notes[:3]] == ["s29: 29.5", "s28: 28.5", "s27: 27.5"]
    assert "27 other sources" in notes[3]
    assert len(_list_notes(replace(outline, sources=sources), details=True)) == 30
    languages = (["de"], ["de", "fr"], ["bn", "de", "fr", "zh"], ["zh"], ["ar", "zh"])
    notes = {f"s{n}": (f"no table for {', '.join(words)} ({n} of 20 records)",) for n, words in enumerate(languages)}
    assert len(_list_notes(replace(outline, sources=_sources(outline, notes)))) == 4


def test_a_source_is_a_line_of_a_table_with_estimates(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "x" * (n % 2 * 100)}) + "\n" for n in range(1000)))
    outline = _outline(tmp_path, Length(min_chars=50), Write(format="jsonl"))
    [source] = outline.sources
    assert source.expected.records == pytest.approx(1000, rel=0.05)
    assert (source.expected.kept_share, source.expected.tokens) == (0.5, 0)
    sources = [replace(source, name=f"dump-{n:02}", num_bytes=n) for n in range(80)]
    many = replace(outline, sources=[*sources, replace(source, name="花" * 30, num_bytes=99)]).describe()
    lines = many.splitlines()
    assert len(lines) < 60
    assert max(count_cells(line) for line in lines if "花" in line or "50%" in line) <= 80
    assert "花" * 30 in many, "a long name has its own line, and is whole"
    assert ("dump-79" in many, "dump-00" in many, "61 others" in many) == (True, False, True)
    assert sum("read → length" in line for line in lines) == 1
    assert "dump-00" in replace(outline, sources=sources).describe(details=True)


@pytest.mark.parametrize(("size", "is_enough"), [(100, True), (10_000, False)])
def test_a_mix_that_the_sources_are_too_small_for_is_said(tmp_path, size, is_enough):
    (tmp_path / "a.jsonl").write_text(LINE * 1000)
    mix = Mix(weights={"web": 3, "code": 1}, size=size, by="documents")
    sources = {name: Read(read="a.jsonl") for name in ("web", "code")}
    recipe = Recipe(sources=sources, steps=(mix, Write(format="jsonl")), output="out", folder=str(tmp_path))
    outline = make_plan(recipe).outline()
    assert outline.epochs == {
        name: pytest.approx(size * weight / 1000) for name, weight in (("web", 0.75), ("code", 0.25))
    }
    assert bool(outline.notes) != is_enough
    assert (" NO" in str(outline)) != is_enough


def test_the_memory_of_workers_and_what_limits_them(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE * ((20 << 20) // len(LINE)))
    outline = _outline(tmp_path, Write(format="jsonl"))
    memory = outline.memory
    assert memory.total_bytes == memory.num_workers * memory.worker_bytes + memory.parent_bytes
    assert f"limited by {memory.limited_by}" in str(outline)
    assert _outline(tmp_path, Write(format="parquet")).memory.worker_bytes > memory.worker_bytes


def test_a_small_job_needs_only_the_memory_of_this_process(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE)
    outline = _outline(tmp_path, Write(format="jsonl"))
    assert (outline.memory.num_workers, outline.memory.worker_bytes) == (0, 0)
    assert "all in this process" in str(outline)


def test_every_copy_on_disk_is_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE * 1000)
    plain = _outline(tmp_path, Write(format="jsonl")).needed_bytes
    packed = _outline(tmp_path, Write(format="jsonl", compression="zstd")).needed_bytes
    shuffled = _outline(tmp_path, Shuffle(), Write(format="jsonl")).needed_bytes
    assert packed < plain == (tmp_path / "a.jsonl").stat().st_size < shuffled


def test_a_large_compressed_file_is_unpacked_first(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINE.encode() * 1000))
    assert _outline(tmp_path, read="a.jsonl.gz").sources[0].num_unpacked_files == 0
    [source] = _outline(tmp_path, read="a.jsonl.gz", layout=UnitLayout(unpack_bytes=1)).sources
    assert source.num_unpacked_files == 1
    assert source.pieces_bytes >= (tmp_path / "a.jsonl.gz").stat().st_size


def test_a_disk_that_is_too_small_is_pointed_out():
    small = Outline(output="out", format="jsonl", sources=[], needed_bytes=10**9, free_bytes=10**6, memory=MEMORY)
    large = Outline(output="out", format="jsonl", sources=[], needed_bytes=10**6, free_bytes=10**9, memory=MEMORY)
    assert "1.0 GB free" in str(large)
    assert "free" not in str(replace(large, free_bytes=sys.maxsize))  # as on a store
    assert not small.fits
    assert "MAY NOT FIT" in str(small)
    assert large.fits
    assert "MAY NOT FIT" not in str(large)


def test_amounts():
    assert [format_bytes(n) for n in (0, 999, 1000, 999_949, 999_950, 10**15)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "1.0 PB",
    ]


MIB = 1 << 20


def _machine(monkeypatch, *, cpus=8, quota=float("inf"), free=64 << 30):
    monkeypatch.setattr(resources, "find_usable_cpus", lambda: list(range(cpus)))
    monkeypatch.setattr(resources, "count_physical_cores", lambda: cpus)
    monkeypatch.setattr(resources, "read_cpu_quota", lambda: quota)
    for module in (resources, expected_memory):
        monkeypatch.setattr(module, "read_memory_available", lambda: free)


def _expect(*steps, slice_bytes=0, num_tasks=1000, in_process=False):
    return expect_memory([steps], slice_bytes=slice_bytes, num_tasks=num_tasks, in_process=in_process)


@pytest.mark.parametrize(
    ("machine", "num_tasks", "expected"),
    [
        ({}, 1000, (8, "cores")),
        ({"quota": 2.5}, 1000, (3, "quota")),
        ({"quota": 20.0}, 1000, (8, "cores")),
        ({"free": 700 * MIB}, 1000, (4, "memory")),
        ({"free": 1}, 1000, (1, "memory")),
        ({}, 5, (5, "tasks")),
        ({}, 0, (1, "tasks")),
    ],
)
def test_the_smallest_limit_is_named(monkeypatch, machine, num_tasks, expected):
    _machine(monkeypatch, **machine)
    memory = _expect(Length(), num_tasks=num_tasks)
    assert (memory.num_workers, memory.limited_by) == expected


def test_the_stage_that_needs_most_decides(monkeypatch):
    _machine(monkeypatch)
    plain = _expect(Length()).worker_bytes
    language, packed = Language(languages=["en"]), Pack(row_length=64)
    both = expect_memory([[language], [packed]], slice_bytes=MIB, num_tasks=9, in_process=False)
    assert both.worker_bytes == _expect(language).worker_bytes > plain
    assert _expect(language, packed, slice_bytes=MIB).worker_bytes == both.worker_bytes + 2 * MIB


def test_partitions_of_a_barrier_count(monkeypatch, tmp_path):
    _machine(monkeypatch)
    plain = _expect(Length()).worker_bytes
    near, lines = Deduplicate(), Deduplicate(kind="lines").resolve("")
    assert near.expected_barrier_bytes(64 << 30, on_store=False) == 160 * MIB
    assert near.expected_barrier_bytes(64 << 30, on_store=True) > 160 * MIB
    assert lines.expected_barrier_bytes(1 << 30, on_store=True) == 160 * MIB
    larger = expect_memory([[Length()]], slice_bytes=0, num_tasks=9, in_process=False, barrier_bytes=160 * MIB)
    assert larger.worker_bytes == plain + 160 * MIB
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "word " * 2_000_000}) + "\n")
    sizes = []
    for partition_bytes in (1, 1 << 30):
        steps = [Deduplicate(partition_bytes=partition_bytes), Write(format="jsonl")]
        recipe = Recipe(sources={"web": Read(read="in.jsonl")}, steps=steps, output="out", folder=str(tmp_path))
        sizes.append(make_plan(recipe, backend="processes").outline().memory.worker_bytes)
    assert sizes[1] - sizes[0] > 5 * MIB, "the plan of a recipe has them too"


def test_the_parent_loads_models_but_writes_nothing(monkeypatch):
    _machine(monkeypatch)
    plain = _expect(Length())
    assert _expect(Language(languages=["en"])).parent_bytes > plain.parent_bytes
    assert _expect(Write(format="parquet"), Pack(row_length=64), slice_bytes=MIB).parent_bytes == plain.parent_bytes


def test_a_run_in_this_process_has_no_workers():
    memory = _expect(Length(), in_process=True)
    assert (memory.num_workers, memory.worker_bytes) == (0, 0)
    assert memory.total_bytes == memory.parent_bytes > 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_a_real_run_in_this_process_stays_near_what_is_expected(tmp_path):
    """The estimate is for people, so a factor of two is near enough; one that drifts away must be noticed."""
    trained(tmp_path / "tokenizer")
    (tmp_path / "a.jsonl").write_text('{"text": "a document of some words"}\n' * 50_000)
    steps = "[{tokenize: {tokenizer: tokenizer}}, {pack: {row_length: 64}}]"
    (tmp_path / "recipe.yaml").write_text(f"output: out\nsources: {{a: {{read: a.jsonl}}}}\nsteps: {steps}\n")
    code = (
        "import gristmill as gm\n"
        "recipe = gm.load_recipe('recipe.yaml')\n"
        "print(gm.plan(recipe).outline().memory.total_bytes)\n"
        "gm.run(recipe, backend='auto', progress=False)\n"
        "print([int(line.split()[1]) << 10 for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected, peak = map(int, done.stdout.split())
    assert expected / 2 < peak < expected * 2


class Tags(HTMLParser):
    """Tags that were opened and not closed, and all text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.text = [], set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_reprs_are_short_however_many_files_there_are(mill, tmp_path):
    for number in range(300):
        (tmp_path / f"part-{number}.jsonl").write_text(json.dumps({"text": f"<script>{number}</script>"}) + "\n")
    name = "<b>web"
    recipe = mill.recipe({name: steps.Read(read=str(tmp_path / "*.jsonl"))}, [steps.Length(min_chars=19)])
    plan = make_plan(recipe)
    assert len(repr(plan)) < 300
    assert "300 files" in repr(plan)
    assert "part-7" not in repr(plan)
    shown = Tags(plan._repr_html_())
    assert shown.text == str(plan)
    result = mill.run(recipe)
    assert len(repr(result)) < 300
    assert str(mill.output) in repr(result)
    shown = Tags(result._repr_html_())
    assert not shown.open
    assert {"script", "b"}.isdisjoint(shown.seen)
    for account in result.books[name]:
        assert account.step in shown.text
        assert f"{account.records_out:,}" in shown.text
    assert "too_short 10" in shown.text
