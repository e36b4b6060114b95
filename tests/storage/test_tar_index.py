"""An index of a tar says what `tarfile` says, and a file that claims to be one is trusted in nothing."""

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.errors import DamagedDatasetError
from gristmill.storage.tar_index import index_tar, load_tar_index

LAW = settings(max_examples=150, deadline=None)


def tar(members, form):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
        for number, (name, size, kind) in enumerate(members):
            info = tarfile.TarInfo(f"{number}/{name}")
            info.type = kind
            info.size = size if kind in (tarfile.REGTYPE, tarfile.AREGTYPE) else 0
            info.linkname = "x" if kind == tarfile.SYMTYPE else ""
            archive.addfile(info, io.BytesIO(bytes([number % 251]) * info.size))
    return sink.getvalue()


@LAW
@given(place=st.floats(0, 1), value=st.integers(0, 255), cut=st.integers(0, 3))
def test_an_index_that_was_changed_is_refused(tmp_path_factory, place, value, cut):
    folder = tmp_path_factory.mktemp("tar")
    (folder / "x.tar").write_bytes(tar([("a.txt", 10, tarfile.REGTYPE)] * 5, tarfile.GNU_FORMAT))
    content = index_tar(str(folder / "x.tar")).to_bytes()
    changed = bytearray(content)
    changed[int(place * (len(content) - 1))] = value
    changed = changed[: len(changed) - cut]
    path = folder / "index"
    path.write_bytes(changed)
    if changed == content:
        load_tar_index(path)
        return
    try:
        index = load_tar_index(path)
    except DamagedDatasetError:
        return
    list(index.members())  # a number that nothing depends on


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("data", [1 << 63, 600, 1100, 1700, 2200]),
        ("size", [1 << 62, 0, 0, 0, 0]),
        ("header", [5000, 0, 0, 0, 0]),
        ("name_end", [9, 8, 7, 6, 5]),
        ("name_end", [1 << 40] * 5),
    ],
)
def test_an_index_with_a_right_checksum_and_wrong_places_is_refused(tmp_path, field, values):
    (tmp_path / "x.tar").write_bytes(tar([("a.txt", 10, tarfile.REGTYPE)] * 5, tarfile.GNU_FORMAT))
    index = index_tar(str(tmp_path / "x.tar"))
    records = index._records.copy()
    records[field] = np.array(values, np.uint64)
    index._records = records
    (tmp_path / "index").write_bytes(index.to_bytes())
    with pytest.raises(DamagedDatasetError):
        load_tar_index(tmp_path / "index")


@pytest.mark.parametrize("content", [b"", b"gristmill tar index 1\n", b"gristmill tar index 1\n{}\n", b"x" * 100])
def test_what_is_no_index(tmp_path, content):
    (tmp_path / "index").write_bytes(content)
    with pytest.raises(DamagedDatasetError):
        load_tar_index(tmp_path / "index")
