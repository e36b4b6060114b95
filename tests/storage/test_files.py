import fsspec
import pytest
import xxhash

from gristmill.core.errors import SourceChangedError
from gristmill.storage.files import VersionChecks, compute_file_checksum, open_input, read_version
from gristmill.storage.paths import find_files


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    """A folder's path, and a function that writes a file in it."""
    if request.param == "local":
        yield str(tmp_path), lambda name, data: (tmp_path / name).write_bytes(data)
        return
    fs = fsspec.filesystem("memory")
    yield "memory://files", lambda name, data: fs.pipe(f"/files/{name}", data)
    fs.rm("/files", recursive=True)


def test_a_file_opens_at_any_byte(place):
    folder, write = place
    write("a", b"0123456789")
    for start in (0, 3, 10, 12):
        with open_input(f"{folder}/a", start) as stream:
            assert stream.read() == b"0123456789"[start:]


def test_the_version_is_that_of_the_listing_until_the_file_changes(place):
    folder, write = place
    write("a", b"one")
    (file,) = find_files(f"{folder}/*")
    assert read_version(file.path) == (file.num_bytes, file.version)
    write("a", b"two")
    assert read_version(file.path) != (file.num_bytes, file.version)


def test_a_file_that_changed_until_it_was_read_is_told(place):
    folder, write = place
    for number in range(100):
        write(f"{number}", b"one")
    files = list(find_files(f"{folder}/*"))

    def check_all():
        checks = VersionChecks()
        for file in files:
            checks.add(file.path, file.num_bytes, file.version)
        checks.wait()

    check_all()
    write("7", b"two!")
    with pytest.raises(SourceChangedError, match="3 bytes then, 4 bytes now"):
        check_all()


def test_a_file_that_is_gone_is_an_error(place):
    folder, write = place
    write("a", b"")
    for use in (open_input, read_version):
        with pytest.raises(FileNotFoundError):
            use(f"{folder}/gone")


def test_file_urls_are_local(tmp_path):
    (tmp_path / "a").write_bytes(b"data")
    with open_input(f"file://{tmp_path}/a", 1) as stream:
        assert stream.read() == b"ata"
    assert read_version(f"file://{tmp_path}/a") == read_version(str(tmp_path / "a"))


@pytest.mark.parametrize("num_bytes", [0, 1, 2**20 - 1, 2**20, 3 * 2**20 + 17])
def test_the_checksum_is_xxh3_of_the_content(tmp_path, num_bytes):
    data = (bytes(range(251)) * (num_bytes // 251 + 1))[:num_bytes]
    path = tmp_path / "a"
    path.write_bytes(data)
    assert compute_file_checksum(path) == compute_file_checksum(f"file://{path}") == xxhash.xxh3_64_hexdigest(data)


def test_a_checksum_keeps_its_leading_zeros():
    assert len(xxhash.xxh3_64_hexdigest(b"")) == 16
