"""Small pictures: photographs with natural statistics, and images that are damaged or hostile."""

import io
import struct
import zlib

import numpy as np
from PIL import Image, PngImagePlugin


def make_photo(seed: int, width: int = 48, height: int = 40) -> np.ndarray:
    """Make pixels whose spectrum falls with the frequency, as that of photographs does."""
    rng = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    falling = 1 / np.maximum(np.hypot(rows, columns), 1 / max(width, height))
    channels = []
    shared = rng.normal(size=(height, width)) + 1j * rng.normal(size=(height, width))
    for _ in range(3):
        own = rng.normal(size=(height, width)) + 1j * rng.normal(size=(height, width))
        values = np.fft.ifft2((shared + 0.3 * own) * falling).real
        channels.append((values - values.min()) / np.ptp(values) * 255)
    return np.stack(channels, axis=2).astype(np.uint8)


def encode(pixels: np.ndarray | Image.Image, form: str = "JPEG", **options: object) -> bytes:
    """Encode an image with Pillow, the oracle of these tests."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return sink.getvalue()


def photo(seed: int, form: str = "JPEG", width: int = 48, height: int = 40, **options: object) -> bytes:
    """Make an encoded photograph."""
    return encode(make_photo(seed, width, height), form, **options)


def turned_photo(seed: int, orientation: int) -> bytes:
    """Make a JPEG whose EXIF block says that it is to be turned, and where it was taken."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "camera"
    exif.get_ifd(0x8825)[1] = "N"
    return photo(seed, exif=exif)


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """Make a PNG of a few hundred bytes whose header states 2.5 billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def animation() -> bytes:
    """Make a GIF of two frames."""
    frames = [Image.fromarray(make_photo(seed)) for seed in (1, 2)]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


def broken_exif(seed: int = 1) -> bytes:
    """Make a JPEG with an EXIF block of nonsense."""
    return photo(seed, exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xff" * 40)


def noted_png(seed: int = 1) -> bytes:
    """Make a PNG with a text chunk."""
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "made at home")
    return photo(seed, "PNG", pnginfo=notes)
