"""Tars that `tarfile`, tar and webdataset read, with nothing in them but the records."""

import gc
import io
import subprocess
import tarfile

import pyarrow as pa
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.core.records import make_origins
from gristmill.shards.formats.shard_format import ShardFormat, open_encoder
from gristmill.shards.formats.tar import encode_member


def _batch(**columns):
    return pa.record_batch({"origin": make_origins(2**63 + 5, pa.array([0, 17, 3000])), **columns})


def _tar(batch):
    encoder = open_encoder(ShardFormat("webdataset"), batch.schema)
    return encoder.header() + encoder.block(batch.slice(0, 2)) + encoder.block(batch.slice(2)) + encoder.footer()


TEXTS = ["one", "", "drei é\n"]


@settings(deadline=None)
@given(st.text("abc-0123456789.", min_size=1, max_size=99), st.binary(max_size=2000))
def test_headers_are_those_of_tarfile(name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    header, content, padding = encode_member(name, data)
    assert header == info.tobuf(tarfile.USTAR_FORMAT)
    assert content == data
    assert (len(content) + len(padding)) % 512 == 0


def test_members_and_keys():
    keys = [f"{2**63 + 5:016x}-{position:012d}-0" for position in (0, 17, 3000)]
    with tarfile.open(fileobj=io.BytesIO(_tar(_batch(text=TEXTS, n=[1, None, 3])))) as tar:
        assert tar.getnames() == [f"{key}.{extension}" for key in keys for extension in ("txt", "json")]
        assert all(entry.mtime == entry.uid == entry.gid == 0 and not entry.uname for entry in tar)
        assert tar.extractfile(f"{keys[2]}.txt").read().decode() == TEXTS[2]
        assert tar.extractfile(f"{keys[1]}.json").read() == b'{"n":null}'


def test_text_alone_makes_one_member_and_no_text_the_other():
    for columns, extension in [({"text": TEXTS}, "txt"), ({"n": [1, 2, 3]}, "json")]:
        with tarfile.open(fileobj=io.BytesIO(_tar(_batch(**columns)))) as tar:
            assert [name.partition(".")[2] for name in tar.getnames()] == [extension] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves the file open
def test_webdataset_reads_it(tmp_path):
    path = tmp_path / "shard-00000.tar"
    records = [b'{"content":"one"}', b"{}", b'{"x":[1]}']
    path.write_bytes(_tar(_batch(text=TEXTS, record=pa.array(records, pa.large_binary()))))
    samples = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False).decode())
    gc.collect()
    assert [sample["txt"] for sample in samples] == TEXTS
    assert [sample["json"] for sample in samples] == [{"content": "one"}, {}, {"x": [1]}]
    assert samples[1]["__key__"] == f"{2**63 + 5:016x}-000000000017-0"


def test_tar_reads_it(tmp_path):
    path = tmp_path / "shard.tar"
    path.write_bytes(_tar(_batch(text=TEXTS)))
    run = subprocess.run(["tar", "-xOf", path], capture_output=True, check=True)
    assert run.stdout.decode() == "".join(TEXTS)
    assert run.stderr == b""


def test_a_member_too_large_for_its_header_is_refused():
    class Huge(bytes):
        def __len__(self):
            return 8**11

    with pytest.raises(ValueError, match="8 GiB"):
        encode_member("huge.txt", Huge())
