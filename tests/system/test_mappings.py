"""What is attached cannot be changed by those who hold it."""
import ctypes
import errno
import fcntl
import mmap
import os
import signal

import pytest

import protocol
from models import Handmade

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
MAP_FAILED = ctypes.c_void_p(-1).value


@pytest.fixture
def made(broker, client):
    broker.leaves_models = True
    model = Handmade(segments=2)
    model.publish(client)
    return model


@pytest.fixture
def attached(broker, made):
    with broker.connect() as holder, holder.attach("handmade") as model:
        yield model


def intact(broker, made):
    with broker.connect() as client, client.attach("handmade") as model:
        return [bytes(m[:]) for m in model.maps] == made.contents


def run_child(function):
    """The wait status of a child that runs it."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            function()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_write_through_a_mapping_kills_the_offender_alone(broker, made, attached):
    size = made.sizes[0]
    address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, attached.segment_fds[0], 0)
    assert address != MAP_FAILED
    status = run_child(lambda: ctypes.memset(address, 0x55, 1))
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV
    assert ctypes.string_at(address, size) == made.contents[0]
    assert intact(broker, made) and broker.serves()


def test_the_commands_own_mapping_is_read_only(broker, cli, made):
    with cli.holding("handmade") as holder:
        with open(f"/proc/{holder.pid}/maps", encoding="ascii") as file:
            lines = [line for line in file if "memfd:" in line]
    assert len(lines) == 3, "the manifest and two segments"
    assert all(line.split()[1].startswith("r--") for line in lines)
    with cli.holding("handmade", "--private") as holder:
        with open(f"/proc/{holder.pid}/maps", encoding="ascii") as file:
            private = [line for line in file if "memfd:" in line and line.split()[1] == "rw-p"]
    assert len(private) == 2
    assert intact(broker, made)


def test_no_holder_can_map_a_segment_writable(broker, made, attached):
    for fd in (*attached.segment_fds, attached.manifest_fd):
        for name in (fd, f"/proc/self/fd/{fd}"):
            again = os.dup(fd) if isinstance(name, int) else os.open(name, os.O_RDWR)
            with protocol.closing(again), pytest.raises(PermissionError):
                mmap.mmap(again, 512, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    assert intact(broker, made)


@pytest.mark.parametrize("what", ["write", "shrink", "grow", "punch a hole", "collapse", "unseal"])
def test_no_holder_can(broker, made, attached, what):
    for fd in (*attached.segment_fds, attached.manifest_fd):
        with pytest.raises(OSError) as refused:
            if what == "write":
                os.pwrite(fd, b"x", 0)
            elif what in ("shrink", "grow"):
                os.ftruncate(fd, 100 if what == "shrink" else 1 << 20)
            elif what in ("punch a hole", "collapse"):
                mode = 3 if what == "punch a hole" else 8  # PUNCH_HOLE | KEEP_SIZE, COLLAPSE_RANGE
                if LIBC.fallocate(fd, mode, 0, 4096) != 0:
                    raise OSError(ctypes.get_errno(), "fallocate")
            else:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert refused.value.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL)
    assert intact(broker, made)


def test_mprotect_does_not_open_a_mapping(broker, made, attached):
    address = LIBC.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, attached.segment_fds[0], 0)
    result = LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), mmap.PROT_READ | mmap.PROT_WRITE)
    assert result == -1 and ctypes.get_errno() == errno.EACCES
    assert intact(broker, made)


def test_a_private_copy_changes_nothing_for_others(broker, made, attached):
    with mmap.mmap(attached.segment_fds[0], made.sizes[0], mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as copy:
        copy[:] = bytes(len(copy))
    assert bytes(attached.maps[0][:]) == made.contents[0]
    assert intact(broker, made)


def test_a_publisher_cannot_keep_a_way_to_write(broker, client):
    """A memfd that is still mapped writable cannot be sealed, and unsealed it is not taken."""
    made = Handmade()
    made.begin(client)
    fd = protocol.memfd(made.contents[0])
    with protocol.closing(fd), mmap.mmap(fd, made.sizes[0], mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as spy:
        with pytest.raises(OSError) as busy:
            protocol.seal(fd)
        assert busy.value.errno == errno.EBUSY
        with pytest.raises(protocol.Failure) as refused:
            client.segments([fd])
        assert refused.value.code == protocol.INVALID and "lacks the seals" in refused.value.message
        spy[:1] = b"x"
    client.close()
    assert broker.becomes_empty()


def test_the_position_of_a_shared_fd_does_not_matter(broker, client, made, attached):
    """All holders share one file position: whoever reads with read() would disturb the others."""
    os.lseek(attached.manifest_fd, 77, os.SEEK_SET)
    os.lseek(attached.segment_fds[0], 77, os.SEEK_SET)
    assert intact(broker, made)
    assert "intact" in broker.cli("verify", "handmade", expect=0).text
