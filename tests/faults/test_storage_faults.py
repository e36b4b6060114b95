"""Storage under attack: damaged streams, full disks, kills in mid-write, rival runs, crowds of files."""

import errno
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.errors import CorruptStreamError, FolderLockedError, UsageError
from gristmill.storage import listing as local_files
from gristmill.storage.codecs import compress_frame, decompress
from gristmill.storage.commit import PendingFile, count_free_bytes, remove_temporaries, write_file
from gristmill.storage.lock import FolderLock
from gristmill.storage.paths import find_files

CODECS = ("gzip", "zstd", "bz2", "xz", "lz4")
LINES = [
    b"".join(b'{"id": %d, "n": %d}\n' % (k * n, n % 97) for n in range(size))
    for k, size in ((7, 9_000), (3, 1), (5, 4_000))
]
FRAMES = {codec: [compress_frame(lines, codec) for lines in LINES] for codec in CODECS}


def drain(packed, codec):
    """What a stream gives, and the error at its end."""
    chunks = []
    try:
        chunks.extend(decompress(io.BytesIO(packed), codec))
    except CorruptStreamError as error:
        return b"".join(chunks), error
    return b"".join(chunks), None


def whole_before(codec, position):
    """The content of the frames that end at or before a position; whether the position is a frame's end."""
    content, end = b"", 0
    for frame, lines in zip(FRAMES[codec], LINES, strict=True):
        if end + len(frame) > position:
            break
        content, end = content + lines, end + len(frame)
    return content, end == position


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_a_stream_cut_anywhere_gives_all_before_the_cut_and_then_an_error(codec, data):
    packed = b"".join(FRAMES[codec])
    cut = data.draw(st.integers(0, len(packed)))
    content, error = drain(packed[:cut], codec)
    whole, at_border = whole_before(codec, cut)
    assert b"".join(LINES).startswith(content)
    assert content.startswith(whole)
    assert (error is None) is at_border
    if error is not None:
        assert error.context["num_bytes"] == len(content)
        assert pickle.loads(pickle.dumps(error)).context == error.context


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_a_damaged_byte_is_found_and_what_lies_before_it_is_given(codec, data):
    packed = bytearray(b"".join(FRAMES[codec]))
    position = data.draw(st.integers(0, len(packed) - 1))
    packed[position] ^= data.draw(st.integers(1, 255))
    content, error = drain(bytes(packed), codec)
    if error is None:  # some bytes say nothing about the content: the time in a gzip header
        assert content == b"".join(LINES)
    else:
        assert content.startswith(whole_before(codec, position)[0])
        assert error.context["num_bytes"] == len(content)


@pytest.mark.parametrize("codec", ["gzip", "xz", "lz4"])
def test_most_of_a_long_member_before_a_cut_or_a_damage_is_given(codec):
    """In the middle of one member, not at a border. (bz2 gives whole blocks of 900 kB, zstd of 128 kB.)"""
    lines = b"".join(b"%d " % (number * number) for number in range(400_000))
    packed = compress_frame(lines, codec, 1)
    half = len(packed) // 2
    for damaged in (packed[:half], packed[:half] + b"\xff\x00" * 500 + packed[half + 1000 :]):
        content, error = drain(damaged, codec)
        assert error is not None
        # What comes last, before the damage shows, may be wrong.
        sure = int(0.45 * len(lines))
        assert content[:sure] == lines[:sure]


@pytest.mark.parametrize("codec", CODECS)
@given(garbage=st.binary(min_size=1, max_size=100).filter(lambda data: data.strip(b"\0")))
def test_garbage_instead_of_a_stream_or_after_it_is_told(codec, garbage):
    content, error = drain(FRAMES[codec][1] + garbage, codec)
    assert content.startswith(LINES[1])
    assert error is not None
    content, error = drain(garbage, codec)
    assert content == b""
    assert error is not None


@pytest.mark.parametrize("codec", CODECS)
def test_an_error_of_the_disk_is_not_taken_for_a_damaged_stream(codec):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input") as caught:
        list(decompress(Broken(), codec))
    assert caught.value.errno == errno.EIO


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if os.getuid() != 0 or mount is None or sys.platform != "linux":
        pytest.skip("only root can mount a small file system")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def write_in_pieces(path, count, piece_bytes):
    with PendingFile(path, "run1") as file:
        for _ in range(count):
            file.write(bytes(piece_bytes))
        file.commit()


@pytest.mark.parametrize("piece_bytes", [1000, 2**20])
def test_a_full_disk_stops_the_write_cleanly_and_space_cures_it(small_disk, piece_bytes):
    assert count_free_bytes(small_disk) <= 2**20
    write_file(small_disk / "old", bytes(600_000), "run1")
    with pytest.raises(OSError, match="space") as caught:
        write_in_pieces(small_disk / "new", 2**20 // piece_bytes, piece_bytes)
    assert caught.value.errno == errno.ENOSPC
    assert str(small_disk / "new") in "".join(caught.value.__notes__)
    assert [path.name for path in small_disk.iterdir()] == ["old"]
    (small_disk / "old").unlink()
    write_file(small_disk / "new", bytes(600_000), "run1")


def start(script, *arguments):
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_kill_9_in_mid_write_leaves_nothing_visible(tmp_path):
    script = (
        "import sys\n"
        "from gristmill.storage.commit import PendingFile\n"
        "with PendingFile(sys.argv[1] + '/shard', 'run9') as file:\n"
        "    while True:\n"
        "        file.write(bytes(10**6))\n"
        "        print('wrote', flush=True)\n"
    )
    process = start(script, tmp_path)
    try:
        for _ in range(5):
            assert process.stdout.readline() == "wrote\n"
    finally:
        kill(process)
    assert find_nothing(tmp_path)
    assert remove_temporaries(tmp_path, "another") == []
    assert len(remove_temporaries(tmp_path, "run9")) == 1
    assert list(tmp_path.iterdir()) == []


def find_nothing(folder):
    with pytest.raises(UsageError):
        find_files(str(folder))
    return True


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_only_whole_files(tmp_path):
    script = (
        "import sys, itertools\n"
        "from gristmill.storage.commit import write_file\n"
        "for number in itertools.count():\n"
        "    write_file(f'{sys.argv[1]}/{number:05d}', bytes([number % 256]) * 300_000, 'run9')\n"
        "    print(number, flush=True)\n"
    )
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = start(script, folder)
        try:
            process.stdout.readline()
            time.sleep(0.003 * attempt)  # not to wait for something: the moment is the test's variable
        finally:
            kill(process)
        remove_temporaries(folder, "run9")
        files = sorted(folder.iterdir())
        assert [file.name for file in files] == [f"{number:05d}" for number in range(len(files))]
        for number, file in enumerate(files):
            assert file.read_bytes() == bytes([number % 256]) * 300_000


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    script = (
        "import signal, sys\n"
        "from gristmill.storage.lock import FolderLock\n"
        "with FolderLock(sys.argv[1]):\n"
        "    print('locked', flush=True)\n"
        "    signal.pause()\n"
    )
    holder = start(script, tmp_path)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(FolderLockedError) as caught, FolderLock(tmp_path):
            pass
        assert caught.value.context["pid"] == holder.pid
    finally:
        kill(holder)
    with FolderLock(tmp_path):
        pass


def test_a_lock_is_never_held_twice(tmp_path):
    """Four processes take and drop it as fast as they can; each checks that it is alone."""
    script = (
        "import os, sys\n"
        "from gristmill.core.errors import FolderLockedError\nfrom gristmill.storage.lock import FolderLock\n"
        "alone = sys.argv[1] + '/alone'\n"
        "taken = 0\n"
        "while taken < 200:\n"
        "    try:\n"
        "        with FolderLock(sys.argv[1]):\n"
        "            os.close(os.open(alone, os.O_CREAT | os.O_EXCL))\n"
        "            os.unlink(alone)\n"
        "            taken += 1\n"
        "    except FolderLockedError:\n"
        "        pass\n"
    )
    takers = [start(script, tmp_path) for _ in range(4)]
    try:
        assert [taker.wait(timeout=240) for taker in takers] == [0, 0, 0, 0]
    finally:
        for taker in takers:
            kill(taker)


def test_links_to_folders_in_chains_and_circles_do_not_lead_out(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (inside / "a").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (inside / "a" / "file").write_text("")
    (inside / "a" / "hop").symlink_to("../b")
    (inside / "b").symlink_to(outside)
    (inside / "c").symlink_to("a")
    (inside / "a" / "c").symlink_to("../c")
    for pattern in (inside, inside / "**", inside / "*" / "*", inside / "*" / "*" / "*"):
        try:
            found = [file.path for file in find_files(str(pattern))]
        except UsageError:
            found = []
        assert not any("secret" in os.path.realpath(path) for path in found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_tiny_files_are_listed_once_each(tmp_path):
    for folder in range(100):
        (tmp_path / f"{folder:02d}").mkdir()
        for number in range(1000):
            os.close(os.open(tmp_path / f"{folder:02d}" / f"{number:03d}.txt", os.O_CREAT | os.O_WRONLY))
    expected = [f"{folder:02d}/{number:03d}.txt" for folder in range(100) for number in range(1000)]
    for pattern in ("", "*/*.txt", "**/*.txt", "{00..99}/{000..999}.txt"):
        assert [file.relative for file in find_files(f"{tmp_path}/{pattern}")] == expected


class FakeEntry:
    """What `scandir` gives, without a disk below."""

    __slots__ = ("name", "path", "status")

    def __init__(self, folder, name, status):
        self.name, self.path, self.status = name, folder + name, status

    def is_symlink(self):
        return False

    def is_dir(self, *, follow_symlinks=True):
        return False

    def is_file(self, *, follow_symlinks=True):
        return True

    def stat(self, *, follow_symlinks=True):
        return self.status


class FakeScan:
    def __init__(self, folder, count):
        status = os.stat(folder)
        self.entries = (FakeEntry(folder, f"part-{number:07d}.jsonl", status) for number in range(count))

    def __enter__(self):
        return self.entries

    def __exit__(self, *args):
        pass


@pytest.mark.slow
def test_a_million_names_are_listed_in_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(local_files.os, "scandir", lambda folder: FakeScan(folder, 1_000_000))
    started = time.monotonic()
    files = find_files(f"{tmp_path}/*.jsonl")
    elapsed = time.monotonic() - started
    assert len(files) == 1_000_000
    assert files[-1].relative == "part-0999999.jsonl"
    assert elapsed < 30
