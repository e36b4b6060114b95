"""Members of a tar, as tarfile finds them."""

import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.test_tar_index import tar

from gristmill.storage.tar_index import PlainTar, index_tar, load_tar_index

NAMES = st.sampled_from(["a.txt", "b/c.json", "é.txt", "x" * 120 + ".txt", "d" * 90 + "/" + "e" * 60 + ".cls", "n"])


SIZES = st.sampled_from([0, 1, 511, 512, 513, 5000])


KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])


FORMS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])


LAW = settings(max_examples=150, deadline=None)


ARCHIVES = st.tuples(st.lists(st.tuples(NAMES, SIZES, KINDS), max_size=8), FORMS)


@LAW
@given(parts=st.lists(ARCHIVES, min_size=1, max_size=2))
def test_the_members_are_those_of_tarfile(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    path.write_bytes(b"".join(tar(*part) for part in parts))
    with tarfile.open(path, ignore_zeros=True) as archive:
        expected = [(found.name, found.size, found.offset_data, found.isreg()) for found in archive.getmembers()]
    index = index_tar(str(path))
    assert [(found.name, found.size, found.data, found.isreg()) for found in index.members()] == expected
    assert index.fault is None
    for first in range(len(index) + 1):
        assert list(index.members(first)) == list(index.members())[first:]
    stored = path.with_suffix(".tarindex")
    stored.write_bytes(index.to_bytes())
    again = load_tar_index(stored)
    assert list(again.members()) == list(index.members())
    with PlainTar(str(path), again) as indexed, PlainTar(str(path)) as scanned:
        assert [indexed.content(found) for found in indexed.members()] == [
            scanned.content(found) for found in scanned.members()
        ]


@LAW
@given(archive=ARCHIVES, share=st.floats(0, 1))
def test_a_tar_that_is_cut_short_says_so(tmp_path_factory, archive, share):
    data = tar(*archive)
    path = tmp_path_factory.mktemp("tar") / "x.tar"
    whole = path.with_name("whole.tar")
    whole.write_bytes(data)
    path.write_bytes(data[: int(share * len(data))])
    members = list(index_tar(str(whole)).members())
    index = index_tar(str(path))
    found = [member for member in index.members() if not member.is_lost()]
    assert found == members[: len(found)]
    end = max((member.data + -(-member.size // 512) * 512 for member in members), default=0)
    num_bytes = path.stat().st_size
    if 0 < num_bytes <= end:
        assert index.fault is not None
    elif num_bytes >= end + 512:
        assert index.fault is None
