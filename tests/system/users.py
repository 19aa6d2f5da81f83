"""Other users: real ones, as commands and in children of the test's own process. Needs root."""
import ctypes
import os
import pickle
import socket

from protocol import SECONDS, Client, Failure, dial

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER = 0x10000000


def user_prefix(uid, gid=None, groups=()):
    """The command line that makes the rest of it run as another user."""
    keep = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid if gid is None else gid), *keep]


def as_user(uid, function, gid=None, groups=()):
    """Runs the function in a child of that user and returns what it returns; what it raises is raised here."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setgroups(list(groups))
            os.setresgid(*[uid if gid is None else gid] * 3)
            os.setresuid(uid, uid, uid)
            try:
                answer = (True, function())
            except Exception as error:  # pylint: disable=broad-except
                answer = (False, (error.code, error.message) if isinstance(error, Failure) else repr(error))
            with os.fdopen(writer, "wb") as file:
                pickle.dump(answer, file)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    good, value = pickle.loads(content)
    assert good, f"as uid {uid}: {value}"
    return value


def dial_as(uid, directory, gid=None, groups=(), unmapped=False):
    """A socket that was connected by a process of that user: to the broker it is that user's for ever.

    `unmapped`: from a user namespace without a map, in which nobody has an identity.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(list(groups))
            os.setresgid(*[uid if gid is None else gid] * 3)
            os.setresuid(uid, uid, uid)
            if unmapped and LIBC.unshare(CLONE_NEWUSER) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            try:
                sock = dial(directory)
                socket.send_fds(theirs, [b"+"], [sock.fileno()])
            except OSError as error:
                theirs.send(str(error.errno).encode())
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    with ours:
        data, fds, _, _ = socket.recv_fds(ours, 64, 1)
    os.waitpid(child, 0)
    if data != b"+":
        raise OSError(int(data), os.strerror(int(data)))
    sock = socket.socket(fileno=fds[0])
    sock.settimeout(SECONDS)
    return sock


def connect_as(uid, directory, gid=None, groups=(), greet=True):
    return Client(dial_as(uid, directory, gid, groups), greet)
