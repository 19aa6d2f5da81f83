"""A file system of one file whose close never ends, unless the test's own process does it. Needs root and /dev/fuse.

Speaks the kernel's protocol itself (linux/fuse.h), the few requests of it that opening and closing a file take.
"""
import ctypes
import errno
import os
import select
import stat
import struct
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
LOOKUP, GETATTR, OPEN, RELEASE, FLUSH, INIT, OPENDIR = 1, 3, 14, 18, 25, 26, 27
IN_HEADER = struct.Struct("<IIQQIIIHH")
ROOT, FILE = 1, 2
SIZE = 4096


def attributes(node):
    mode, links = (stat.S_IFDIR | 0o755, 2) if node == ROOT else (stat.S_IFREG | 0o666, 1)
    return struct.pack("<QQQQQQIIIIIIIIII", node, SIZE, 8, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)


class HangingFile:
    """with HangingFile(folder) as path: closing what is opened there hangs everybody but this process's first thread."""

    def __init__(self, folder):
        self.folder, self.hung = str(folder), threading.Event()

    def __enter__(self):
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        options = f"fd={self.fd},rootmode=40755,user_id=0,group_id=0,allow_other".encode()
        if LIBC.mount(b"ipc-cache-test", self.folder.encode(), b"fuse", 0, options) != 0:
            os.close(self.fd)
            raise OSError(ctypes.get_errno(), "mount")
        self.stop_read, self.stop_write = os.pipe()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        return os.path.join(self.folder, "hang")

    def __exit__(self, *_):
        LIBC.umount2(self.folder.encode(), 2)  # MNT_DETACH
        os.close(self.stop_write)
        self.thread.join(60)
        os.close(self.fd)  # ends all that hangs
        os.close(self.stop_read)

    def _serve(self):
        while True:
            ready, _, _ = select.select([self.fd, self.stop_read], [], [])
            if self.stop_read in ready:
                return
            try:
                request = os.read(self.fd, 1 << 20)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return
            _, kind, unique, node, _, _, pid, _, _ = IN_HEADER.unpack_from(request)
            answer = self._answer(kind, node, pid, request[IN_HEADER.size:])
            if answer is not None:
                error, body = answer
                try:
                    os.write(self.fd, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
                except OSError:
                    pass

    def _answer(self, kind, node, pid, body):
        if kind == INIT:
            return 0, struct.pack("<IIIIHHIIHH", 7, 31, 0, 0, 1, 1, 65536, 1, 0, 0) + bytes(64 - 32)
        if kind == LOOKUP:
            return (0, struct.pack("<QQQQII", FILE, 0, 0, 0, 0, 0) + attributes(FILE)) if body == b"hang\0" else \
                (errno.ENOENT, b"")
        if kind == GETATTR:
            return 0, struct.pack("<QII", 0, 0, 0) + attributes(node)
        if kind in (OPEN, OPENDIR):
            return 0, struct.pack("<QII", 1, 0, 0)
        if kind == FLUSH and pid != os.getpid():
            self.hung.set()
            return None
        if kind in (FLUSH, RELEASE):
            return 0, b""
        return (errno.ENOSYS, b"") if kind not in (2, 42) else None  # FORGET and BATCH_FORGET have no answer
