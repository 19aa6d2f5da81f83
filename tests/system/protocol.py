"""The wire protocol a second time, from ipc-cache-protocol(7): a client that can also misbehave.

Everything here is blocking and has a time limit, so that a broker that does not answer fails a test and does not hang it.
"""
import array
import contextlib
import fcntl
import mmap
import os
import socket
import struct

from manifest import Manifest, key_id, pack_key, unpack_key

(HELLO, BEGIN, SEGMENTS, DRAFT, COMMIT, ATTACH, DETACH, LIST, EVICT, PING, STAT) = range(1, 12)
EVICTED, GOODBYE, LOST, RELEASED = range(64, 68)

(OK, FAILED, USAGE, NOT_FOUND, MISMATCH, INVALID, REFUSED, NO_BROKER, BUSY, TIMEOUT, CANCELED, NO_MEMORY, EXISTS,
 PROTOCOL, UNKNOWN) = range(15)
LOADING, READY, DRAINING = 1, 2, 3
OWNER, GROUP, ALL = 0, 1, 2
IDLE, DRAIN, FORCE = 0, 1, 2
REPLACE, KEPT = 1, 2  # flags of BEGIN
EXACT = 1
MODEL_KEPT = 1  # a flag of an attach reply and a list entry

MAX_MESSAGE = 65536
MAX_FDS = 253
MAX_SEGMENTS = 252
MAX_MANIFEST = 64 << 20
FOREVER = 0xFFFFFFFF
SECONDS = float(os.environ.get("IPC_CACHE_PATIENCE", "45"))  # for one reply; sanitizer builds on a busy machine are slow

HEADER = struct.Struct("<IHHII")
SELECTOR = struct.Struct("<IIHHI")
BEGIN_REQUEST = struct.Struct("<IIIIIHHII")
LIST_ENTRY = struct.Struct("<QQQQIIIIIIIIHHHHII")
HOLDER = struct.Struct("<IIQ")
STAT_REPLY = struct.Struct("<16s32sIIQQQQQQQQQQQQQQ")
STAT_NAMES = ("instance", "version", "pid", "uid", "uptime_ns", "connections", "models", "loading", "leases", "bytes",
              "fds", "fd_limit", "accepted", "refused", "attaches", "mismatches", "commits", "evictions")
assert (BEGIN_REQUEST.size, LIST_ENTRY.size, STAT_REPLY.size) == (32, 80, 168)


class Failure(Exception):
    """What a reply with a code, or a GOODBYE, says."""

    def __init__(self, code, body):
        sizes = struct.unpack_from("<4H", body)
        assert len(body) == 8 + sum(sizes), "an error reply of the wrong length"
        texts, at = [], 8
        for size in sizes:
            texts.append(body[at:at + size].decode())
            at += size
        self.code = code
        self.field, self.expected, self.got, self.message = texts
        super().__init__(f"code {code}: {self.message}")


class Closed(Exception):
    """The broker ended the connection."""


class Message:
    def __init__(self, data, fds):
        size, self.type, reserved, self.request, self.code = HEADER.unpack_from(data)
        self.body, self.fds = data[HEADER.size:], fds
        assert size == len(data) and reserved == 0

    @property
    def failure(self):
        return Failure(self.code, self.body) if self.code else None

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def header(kind, body=b"", request=1, code=0, reserved=0, size=None):
    return HEADER.pack(HEADER.size + len(body) if size is None else size, kind, reserved, request, code) + body


def hello(major=1, minor=0, magic=b"ipcc", features=0):
    return struct.pack("<4sHHII", magic, major, minor, features, 0)


def selector(text="", key=None, exact=False, wait_ms=0):
    packed = pack_key(key or {})
    return SELECTOR.pack(EXACT if exact else 0, wait_ms, len(text.encode()), len(key or {}), len(packed)) + \
        text.encode() + packed


def begin(key, sizes, name="", visibility=OWNER, gid=0, flags=0, wait_ms=0):
    packed, name = pack_key(key), name.encode()
    return BEGIN_REQUEST.pack(flags, wait_ms, len(sizes), visibility, gid, len(name), len(key), len(packed), 0) + \
        struct.pack(f"<{len(sizes)}Q", *sizes) + name + packed


def dial(directory):
    """A connected socket; the directory's path may be of any length."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(SECONDS)
        try:
            sock.connect(f"/proc/self/fd/{fd}/broker.sock")
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(fd)


class Client:
    def __init__(self, sock, greet=True):
        self.sock, self.last_request, self.events = sock, 0, []
        if greet:
            reply = self.call(HELLO, hello())
            self.instance = reply.body[8:24]

    @classmethod
    def connect(cls, directory, greet=True):
        return cls(dial(directory), greet)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    # ---- raw ----

    def send_raw(self, data, fds=()):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if len(fds) else []
        self.sock.sendmsg([data], ancillary)

    def send(self, kind, body=b"", fds=(), request=None):
        if request is None:
            self.last_request += 1
            request = self.last_request
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what the broker said before is still to be read
            self.send_raw(header(kind, body, request), fds)
        return request

    def receive(self, seconds=SECONDS):
        """The next message. Raises Closed at the end."""
        self.sock.settimeout(seconds)
        for resets in range(2):
            try:
                data, ancillary, flags, _ = self.sock.recvmsg(MAX_MESSAGE + 1, socket.CMSG_SPACE(4 * MAX_FDS),
                                                              socket.MSG_CMSG_CLOEXEC)
                break
            except (ConnectionResetError, BrokenPipeError) as error:
                if resets:  # the first one only says that something of ours was not read, and hides the last words
                    raise Closed from error
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(payload[:len(payload) - len(payload) % 4])
        assert not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
        if not data:
            raise Closed
        return Message(data, list(fds))

    def last_words(self, seconds=SECONDS):
        """Reads until the broker ends the connection; what it said last, or None."""
        failure = None
        try:
            while True:
                message = self.receive(seconds)
                message.close()
                failure = message.failure or failure
        except Closed:
            return failure

    def wait_for(self, kind, request, seconds=SECONDS):
        while True:
            message = self.receive(seconds)
            if message.request == 0:
                if message.type == GOODBYE:
                    raise message.failure
                self.events.append(message.type)
                continue
            assert (message.type, message.request) == (kind, request), "an answer to another question"
            if message.code:
                raise message.failure
            return message

    def call(self, kind, body=b"", fds=(), request=None, seconds=SECONDS):
        return self.wait_for(kind, self.send(kind, body, fds, request), seconds)

    # ---- requests ----

    def begin(self, key, sizes, **options):
        request = options.pop("request", None)
        return struct.unpack("<Q", self.call(BEGIN, begin(key, sizes, **options), request=request).body)[0]

    def segments(self, fds, first=0, count=None, **options):
        self.call(SEGMENTS, struct.pack("<II", first, len(fds) if count is None else count), fds, **options)

    def draft(self, content, size=None, **options):
        """`content`: bytes, put into a sealed memfd, or an fd."""
        fd = content if isinstance(content, int) else sealed(content)
        try:
            self.call(DRAFT, struct.pack("<Q", os.fstat(fd).st_size if size is None else size), [fd], **options)
        finally:
            if not isinstance(content, int):
                os.close(fd)

    def commit(self, **options):
        """id and generation"""
        return struct.unpack("<QQ", self.call(COMMIT, **options).body)

    def attach(self, text="", key=None, exact=False, wait_ms=0, **options):
        return Attached(self.call(ATTACH, selector(text, key, exact, wait_ms), **options))

    def detach(self, **options):
        self.call(DETACH, **options)

    def evict(self, text="", mode=IDLE, key=None, wait_ms=0, **options):
        """The leases that are left."""
        body = struct.pack("<II", mode, 0) + selector(text, key, wait_ms=wait_ms)
        return struct.unpack("<QII", self.call(EVICT, body, **options).body)[1]

    def ping(self, **options):
        assert self.call(PING, **options).body == b""

    def stat(self):
        stat = dict(zip(STAT_NAMES, STAT_REPLY.unpack(self.call(STAT).body)))
        stat["version"] = stat["version"].rstrip(b"\0").decode()
        return stat

    def list(self):
        models, more = [], 1
        while more:
            body = self.call(LIST, struct.pack("<Q", models[-1]["id"] if models else 0)).body
            count, more = struct.unpack_from("<II", body)
            at = 8
            for _ in range(count):
                entry, at = read_entry(body, at)
                models.append(entry)
            assert at == len(body)
        return models

    def model(self, name):
        """The one entry of that name, or None."""
        found = [m for m in self.list() if m["name"] == name]
        assert len(found) <= 1
        return found[0] if found else None


def read_entry(body, at):
    names = ("id", "generation", "created_ns", "bytes", "state", "owner_uid", "publisher_pid", "visibility", "visible_gid",
             "segments", "tensors", "leases", "holder_count", "name_bytes", "field_count", "reserved", "field_bytes",
             "flags")
    entry = dict(zip(names, LIST_ENTRY.unpack_from(body, at)))
    at += LIST_ENTRY.size
    entry["holders"] = []
    for _ in range(entry["holder_count"]):
        entry["holders"].append(dict(zip(("pid", "uid", "since_ns"), HOLDER.unpack_from(body, at))))
        at += HOLDER.size
    entry["name"] = body[at:at + entry["name_bytes"]].decode()
    at += entry["name_bytes"]
    entry["key"] = unpack_key(body[at:at + entry["field_bytes"]])
    assert len(entry["key"]) == entry["field_count"]
    entry["key_id"] = key_id(entry["key"])
    return entry, at + entry["field_bytes"]


class Attached:
    """What a reply to ATTACH brings: the manifest, and each segment mapped read-only, or the handles of a kept model. `with`
    closes it."""

    def __init__(self, message):
        self.id, self.generation, size, count, flags = struct.unpack("<QQQII", message.body)
        self.kept = flags == MODEL_KEPT
        assert flags in (0, MODEL_KEPT) and len(message.fds) == (1 if self.kept else count + 1)
        self.fds = message.fds
        self.manifest_fd, self.segment_fds = self.fds[0], self.fds[1:]
        self.manifest_bytes = os.pread(self.manifest_fd, size + 1, 0)
        assert len(self.manifest_bytes) == size
        self.manifest = Manifest(self.manifest_bytes)
        self.maps = []
        self.handles = [bytes(s["handle"])[:int(s["handle_bytes"])] for s in self.manifest.segments]
        assert len(self.handles) == count and all(bool(handle) == self.kept for handle in self.handles)
        for raw, fd in zip(self.manifest.segments, self.segment_fds):
            assert os.fstat(fd).st_size == raw["bytes"]
            self.maps.append(mmap.mmap(fd, int(raw["bytes"]), mmap.MAP_SHARED, mmap.PROT_READ))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for mapping in self.maps:
            mapping.close()
        for fd in self.fds:
            os.close(fd)
        self.maps, self.fds = [], []

    def tensor_bytes(self, tensor):
        return self.maps[tensor.segment][tensor.offset:tensor.offset + tensor.bytes]


# ---- memory ----

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def memfd(content=b"", size=None):
    """A memfd with all pages allocated and no seals."""
    fd = os.memfd_create("ipc-cache-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    size = len(content) if size is None else size
    if size:
        os.posix_fallocate(fd, 0, size)
    view, at = memoryview(content), 0
    while at < len(view):
        at += os.pwrite(fd, view[at:], at)
    return fd


def seal(fd, seals=SEALS):
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def sealed(content=b"", size=None):
    return seal(memfd(content, size))


@contextlib.contextmanager
def closing(*fds):
    """The fds, closed afterwards."""
    try:
        yield fds[0] if len(fds) == 1 else fds
    finally:
        for fd in fds:
            os.close(fd)
