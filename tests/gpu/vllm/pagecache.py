"""Taking files out of the page cache, and counting what of them is in it. Needs no privileges but to own the files."""

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def _files(folder):
    return sorted(Path(folder).glob("*.safetensors"))


def write_back(folder):
    """Has everything on the disk: pages that are not cannot be dropped."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(_sync, _files(folder)))


def _sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def drop(folder):
    """Drops the weight files of a folder; the bytes of them that are still there, and all their bytes."""
    write_back(folder)
    for path in _files(folder):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return resident(folder)


def resident(folder):
    """Bytes in the page cache, and all bytes, of a folder's weight files."""
    counts = [_resident(path) for path in _files(folder)]
    return sum(count for count, _ in counts), sum(size for _, size in counts)


def _resident(path):
    size = path.stat().st_size
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        here = ctypes.c_char.from_buffer(mapping)
        found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        failed = _libc.mincore(ctypes.c_void_p(ctypes.addressof(here)), ctypes.c_size_t(size), found)
        number = ctypes.get_errno()
        del here
    if failed:
        raise OSError(number, f"mincore: {os.strerror(number)}", str(path))
    return min(size, sum(byte & 1 for byte in bytes(found)) * mmap.PAGESIZE), size
