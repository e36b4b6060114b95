"""Functions of `pyarrow.compute` that are made when they are used are those that its import makes."""

from gristmill_testing.scripts import run

NAMES = "sorted(name for name in dir(pc) if not name.startswith('_'))"
ON_DEMAND = "from gristmill.runtime import compute_functions as made; made.make_compute_functions_on_demand(); "


def test_no_function_is_missing():
    usual = run("-c", f"import pyarrow.compute as pc; print(*{NAMES})").stdout.split()
    script = ON_DEMAND + f"import pyarrow.compute as pc; print(len(vars(pc)), *(hasattr(pc, n) for n in {usual}))"
    num_at_first, *are_there = run("-c", script).stdout.split()
    assert set(are_there) == {"True"}
    assert int(num_at_first) < len(usual) / 2


def test_all_are_there_for_those_who_look_for_names():
    usual = run("-c", f"import pyarrow.compute as pc; print(*{NAMES})").stdout
    assert run("-c", ON_DEMAND + f"import pyarrow.compute as pc; print(*{NAMES})").stdout == usual
    imported = "from pyarrow.compute import *; print(*sorted(name for name in dir() if name not in ('made', 'pc')))"
    assert run("-c", ON_DEMAND + imported).stdout == run("-c", imported).stdout


def test_they_do_the_same_and_can_be_sent_to_workers():
    script = ON_DEMAND + (
        "import pickle, pyarrow as pa, pyarrow.compute as pc; from pyarrow.compute import sum as total; "
        "flags = pa.array([True, False, None]); array = pa.array(['B', 'a']); "
        "print(pc.and_(flags, True).to_pylist(), total(pa.array([1, 2])), pc.utf8_lower(array).to_pylist(), "
        "pickle.loads(pickle.dumps(pc.utf8_lower)) is pc.utf8_lower, array.filter(pc.equal(array, 'a')).to_pylist(), "
        "pc.round(1.25, ndigits=1), pc.utf8_zfill is pc.utf8_zero_fill, hasattr(pc, 'hash_sum'), hasattr(pc, 'some'))"
    )
    assert run("-c", script).stdout.strip() == ("[True, False, None] 3 ['b', 'a'] True ['a'] 1.2 True False False")


def test_another_version_of_pyarrow_is_imported_as_it_is():
    script = "from gristmill.runtime import compute_functions as made; made._NEEDED_BY_IMPORT.clear(); "
    script += "made.make_compute_functions_on_demand(); import pyarrow.compute as pc; print(len(dir(pc)))"
    usual = run("-c", "import pyarrow.compute as pc; print(len(dir(pc)))").stdout
    assert run("-c", script).stdout == usual
