"""The broker's directory: what either side refuses to touch, and what it survives."""
import os
import signal
import socket
import subprocess
import threading

import pytest

from users import user_prefix

import protocol
from harness import failing_start, wait_until
from models import Handmade

A, B = 1234, 1235


# ---- the client's side ----


def test_without_a_directory_there_is_no_broker(binaries, folder, broker):
    missing = broker.cli("ls", directory=folder / "nothing", expect=7)
    assert "does not exist" in missing.err and "start ipc-cached" in missing.err
    os.mkdir(folder / "empty")
    assert "no broker has its socket" in broker.cli("ls", directory=folder / "empty", expect=7).err


def test_a_directory_of_another_user_is_not_used(other_users, broker, folder):
    os.mkdir(folder / "theirs", 0o755)
    os.chown(folder / "theirs", B, B)
    stopped = broker.cli("ls", directory=folder / "theirs", prefix=user_prefix(A), expect=6)
    assert f"belongs to uid {B}" in stopped.err
    assert broker.cli("ls", directory=folder / "theirs", expect=6)


@pytest.mark.parametrize("mode, remedy", [(0o770, "chmod go-w"), (0o707, "chmod go-w"), (0o777, "chmod go-w"),
                                          (0o720, "chmod go-w"), (0o1777, "a directory of your own inside it")])
def test_a_directory_that_others_may_write_is_not_used(broker, mode, remedy):
    os.chmod(broker.directory, mode)
    stopped = broker.cli("ls", expect=6)
    assert f"mode {mode:04o}" in stopped.err and remedy in stopped.err
    os.chmod(broker.directory, 0o700)
    assert broker.serves()


def test_a_linked_directory_is_not_used(broker, folder):
    os.symlink(broker.directory, folder / "link")
    assert "is a link" in broker.cli("ls", directory=folder / "link", expect=6).err
    os.mkdir(folder / "parent")
    os.symlink(folder / "parent", folder / "way")
    assert broker.cli("ls", directory=folder / "way" / "nothing", expect=7)


@pytest.mark.parametrize("what", ["link to the socket", "regular file", "directory", "fifo", "link to nothing"])
def test_what_stands_in_the_place_of_the_socket_is_not_used(broker, folder, what):
    path = os.path.join(broker.directory, "broker.sock")
    os.rename(path, path + ".real")
    if what == "link to the socket":
        os.symlink(path + ".real", path)
    elif what == "link to nothing":
        os.symlink("/nowhere", path)
    elif what == "directory":
        os.mkdir(path)
    elif what == "fifo":
        os.mkfifo(path)
    else:
        with open(path, "w", encoding="ascii"):
            pass
    stopped = broker.cli("ls", expect=6)
    assert "no socket" in stopped.err and "remove it" in stopped.err
    (os.rmdir if what == "directory" else os.unlink)(path)
    os.rename(path + ".real", path)
    assert broker.serves()


def listen_as(uid, directory):
    """A listening socket in somebody's directory, made by another user."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(directory)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            sock.bind("broker.sock")
            os.chmod("broker.sock", 0o666)
            sock.listen()
            socket.send_fds(theirs, [b"+"], [sock.fileno()])
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    with ours:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    return socket.socket(fileno=fds[0])


def test_a_fake_broker_of_another_user_is_found_out(other_users, broker, folder):
    """It listens in a directory that the client owns: only the peer's uid gives it away. Nothing is sent to it."""
    directory = folder / "mine"
    os.mkdir(directory)
    os.chmod(directory, 0o777)
    heard = []
    with listen_as(B, directory) as fake:
        os.chown(directory, A, A)
        os.chmod(directory, 0o755)

        def serve():
            peer, _ = fake.accept()
            with peer:
                peer.settimeout(60)
                try:
                    heard.append(peer.recv(100))
                except OSError:
                    heard.append(b"")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        stopped = broker.cli("ls", directory=directory, prefix=user_prefix(A), expect=6)
        thread.join(60)
    assert f"uid {B}" in stopped.err and heard == [b""]


def test_a_path_of_any_length_works(start_broker, folder):
    name = "/".join(["d" * 200] * 3)
    os.makedirs(folder / os.path.dirname(name))
    broker = start_broker(name=name, leaves_models=True)
    assert len(broker.directory) > 600
    assert "round trip" in broker.cli("ping", expect=0).text
    with broker.connect() as client:
        Handmade().publish(client)
    assert broker.cli("attach", "handmade", "--json", expect=0)


def test_the_directory_comes_from_the_environment_unless_it_is_given(broker, binaries):
    environment = os.environ | {"IPC_CACHE_DIR": broker.directory}
    done = subprocess.run([binaries.cli, "ls", "--json"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0 and done.stdout
    environment["IPC_CACHE_DIR"] = broker.directory + ".none"
    done = subprocess.run([binaries.cli, "ls"], env=environment, capture_output=True, check=False)
    assert done.returncode == 7
    done = subprocess.run([binaries.cli, "--dir", broker.directory, "ls"], env=environment, capture_output=True,
                          check=False)
    assert done.returncode == 0


# ---- the broker's side ----


def test_a_second_broker_is_refused_with_the_pid_of_the_first(binaries, broker):
    status, said = failing_start(binaries, broker.directory)
    assert status == 6 and f"process {broker.pid}" in said and "serves" in said
    assert broker.serves()


@pytest.mark.parametrize("openness", ["owner", "all"])
def test_a_second_broker_changes_nothing_before_it_is_refused(binaries, start_broker, openness):
    other = {"owner": "all", "all": "owner"}[openness]
    broker = start_broker(f"[broker]\nopen = {openness}\n")
    before = {name: os.stat(os.path.join(broker.directory, name)).st_mode for name in (".", "broker.sock", "broker.lock")}
    status, _ = failing_start(binaries, broker.directory, config=f"[broker]\nopen = {other}\n")
    assert status == 6
    after = {name: os.stat(os.path.join(broker.directory, name)).st_mode for name in before}
    assert after == before
    assert broker.serves()


def test_a_killed_brokers_socket_is_replaced_by_the_next(start_broker, binaries):
    broker = start_broker()
    broker.process.kill()
    broker.process.wait()
    gone = broker.cli("ls", expect=7)
    assert "no broker listens" in gone.err and "start ipc-cached" in gone.err
    assert os.path.exists(os.path.join(broker.directory, "broker.sock"))
    broker.start()
    assert broker.serves()


def test_a_broker_that_ends_takes_its_socket_along(start_broker):
    broker = start_broker()
    broker.stop()
    assert not os.path.exists(os.path.join(broker.directory, "broker.sock"))
    assert "no broker has its socket" in broker.cli("ls", expect=7).err
    broker.start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_ends_with_status_0_when_told_to(binaries, start_broker, number):
    broker = start_broker()
    with broker.connect() as client, broker.connect() as holder:
        Handmade().publish(client)
        with holder.attach("handmade") as attached:
            before = bytes(attached.maps[0][:])
            broker.signal(number)
            assert broker.process.wait(60) == 0 and "ended" in broker.log
            holder.last_words()
            assert bytes(attached.maps[0][:]) == before
    broker.start()


def test_holders_of_a_broker_that_dies_keep_their_weights(start_broker, small):
    broker = start_broker()
    broker.cli("load", small, "--name", "small", expect=0)
    with broker.cli.holding("small") as holder:
        broker.process.kill()
        broker.process.wait()
        broker.start()
        assert holder.poll() is None
        holder.stdin.close()
        assert holder.wait(60) == 0


@pytest.mark.parametrize("what", ["link", "file", "owned by another", "writable by others"])
def test_a_broker_does_not_start_in(other_users, binaries, broker, folder, what):
    path = folder / "strange"
    if what == "link":
        os.symlink(folder, path)
    elif what == "file":
        path.write_text("")
    else:
        path.mkdir()
        if what == "owned by another":
            os.chown(path, A, A)
        else:
            os.chmod(path, 0o777)
    status, said = failing_start(binaries, path)
    assert status == 6 and str(path) in said, said


def test_a_broker_does_not_remove_what_is_no_socket(binaries, broker, folder):
    path = folder / "other"
    path.mkdir(0o700)
    (path / "broker.lock").write_text("")
    (path / "broker.sock").write_text("precious")
    status, said = failing_start(binaries, path)
    assert status == 6 and "in the way" in said
    assert (path / "broker.sock").read_text() == "precious"


def test_a_folder_of_other_things_is_no_brokers_and_stays_as_it_is(binaries, broker, folder):
    """A typing error must not close somebody's folder to everybody."""
    path = folder / "photographs"
    path.mkdir(0o755)
    path.chmod(0o755)
    (path / "cat").write_text("miaow")
    status, said = failing_start(binaries, path, "[broker]\nopen = owner\n")
    assert status == 6 and "not empty" in said
    assert path.stat().st_mode & 0o7777 == 0o755 and os.listdir(path) == ["cat"]


@pytest.mark.parametrize("text, says", [
    ("[acess]\nattach = 1\n", ":2:"),
    ("[access]\natach = 1\n", "atach"),
    ("[limits]\nmodels = 1\nmodels = 2\n", "given twice"),
    ("[broker]\nopen = all\nopen = owner\n", "given twice"),
    ("[access]\nattach = 1\nattach = no-such-user\n", ":3:"),
    ("[access]\nattach = no-such-user\n", "no-such-user"),
    ("[access]\nattach = @no-such-group\n", "no-such-group"),
    ("[access]\ntrusted = all\n", "one by one"),
    ("[access]\nattach = -1\n", "-1"),
    ("[access]\nattach = 4294967295\n", "4294967295"),
    ("[broker]\nopen = world\n", "world"),
    ("[broker]\ndir = relative\n", "absolute"),
    ("[limits]\nmodels = many\n", "many"),
    ("[limits]\nbytes = 1X\n", "1X"),
    ("[limits]\nbytes = 99999999T\n", "99999999T"),
    ("[limits no-such-user]\nmodels = 1\n", "does not exist"),
    ("[timeouts]\nhello_ms = 1\n", "hello_ms"),
    ("gibberish\n", ":1:"),
])
def test_a_configuration_with_a_mistake_is_refused_with_its_line(binaries, folder, broker, text, says):
    status, said = failing_start(binaries, folder / "misconfigured", config=text)
    assert status == 5 and says in said and "misconfigured.ini:" in said, said
    assert not (folder / "misconfigured").exists()


def test_a_configuration_that_is_missing_is_an_error(binaries, folder):
    done = subprocess.run([binaries.broker, "--dir", str(folder / "d"), "--config", str(folder / "none.ini")],
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "none.ini" in done.stderr


def test_what_a_stranger_does_to_the_lock_file_is_noticed(binaries, broker):
    path = os.path.join(broker.directory, "broker.lock")
    with open(path, encoding="ascii") as file:
        assert int(file.read()) == broker.pid
    wait_until(broker.serves, "the broker")
    assert protocol.dial(broker.directory).close() is None
