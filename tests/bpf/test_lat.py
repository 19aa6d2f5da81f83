"""ipc-cache-lat on the real kernel: its counts are exact, its times are the client's own, and what is lost is counted."""
import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest

from gpu import FakeDriver
from harness import wait_until
from library import Library
from protocol import Failure
from tracing import document

ATTACHES = 1000
COUNTED = {"connect__started": 1, "connect__finished": 1, "attach__started": 1, "manifest__verified": 1, "attach__finished": 1,
           "map__started": 1, "segment__imported": 1, "segment__mapped": 1, "map__finished": 1, "connection__accepted": 1,
           "connection__authenticated": 1, "key__matched": 1, "lease__taken": 1, "lease__ended": 1}


def agree(ours, theirs, least=0):
    """Within 10 %. A mapping of 20 us is measured from inside its first probe to inside its last: `least` us more."""
    return abs(ours - theirs) <= theirs / 10 + least


def test_counts_are_exact_and_times_are_those_of_the_clients_clock(lat, cli, resident):
    with lat.following("--json", "-n", ATTACHES, "-d", 60) as tool:
        own = cli("attach", "small", "--repeat", ATTACHES, "--json", expect=0).json
        seen = document(tool.wait())
    assert (seen["attaches"], seen["failed"], seen["lost"]) == (ATTACHES, 0, 0)
    for name, each in COUNTED.items():
        # The last lease ends after the last attach, at which the tool ends.
        missing = 1 if name == "lease__ended" else 0
        assert ATTACHES * each - missing <= seen["events"][name]["seen"] <= ATTACHES * each, name
    phases = seen["phases_us"]
    for name in "connect", "attach", "map", "total":
        assert phases[name]["count"] == ATTACHES
        print(name, phases[name]["p50"], own["times_us"][name]["p50"], phases[name]["p90"], own["times_us"][name]["p90"])
        assert agree(phases[name]["p50"], own["times_us"][name]["p50"], 1 if name == "map" else 0), (name, phases[name], own["times_us"])
    # Parts do not exceed what they are parts of.
    assert phases["broker"]["sum"] < phases["request"]["sum"] < phases["attach"]["sum"] < phases["total"]["sum"]


def test_the_shared_library_is_followed_without_a_pid_and_the_sums_agree(lat, build, broker, resident, not_sanitized):
    library = Library(build / "libipc_cache.so")
    now = time.monotonic_ns()
    with lat.following("--json", "-n", 200, "-d", 60, "--pid", os.getpid(), "--model", "small") as tool:
        took = [library.attach(broker.directory, "small", [("bind", now, now + 5000000)]) for _ in range(200)]
        seen = document(tool.wait())
    assert (seen["attaches"], seen["lost"]) == (200, 0)
    for i, name in enumerate(("connect", "attach", "map")):
        own = sum(times[i] for times in took) / 1000
        print(name, seen["phases_us"][name]["sum"], own)
    own = sum(map(sum, took)) / 1000
    assert agree(seen["phases_us"]["total"]["sum"], own)
    # The last one's phase may come after the end.
    assert seen["phases_us"]["bind"]["count"] >= 199 and agree(seen["phases_us"]["bind"]["p50"], 5000)


def test_other_processes_and_models_are_left_out(lat, cli, resident):
    with lat.following("--json", "--pid", os.getpid()) as tool:
        cli("attach", "small", expect=0)
    assert document(tool.end())["attaches"] == 0
    with lat.following("--json", "--model", "other") as tool:
        cli("attach", "small", expect=0)
    assert document(tool.end())["attaches"] == 0


def test_a_mismatch_shows_field_and_values(lat, broker, resident, folder, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(resident, changed)
    size = (changed / "model.safetensors").stat().st_size
    with (changed / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with lat.following("--json") as tool:
        with broker.connect() as client, pytest.raises(Failure):
            client.attach("small", key={"dtype": "bf16"})
        broker.cli("attach", "small", "--sources", changed, expect=4)
        time.sleep(0.2)
    seen = document(tool.end())
    keys, sources = seen["mismatches"]
    assert (keys["field"], keys["expected"], keys["got"], keys["pid"]) == ("dtype", "bf16", "(none)", os.getpid())
    assert sources["field"] == "model.safetensors"
    assert (sources["expected"], sources["got"]) == (f"{size + 1} bytes", f"{size} bytes")
    assert seen["failed"] == 1


def test_nothing_is_lost_at_the_highest_rate_that_is_reached(lat, cli, resident):
    with lat.following("--json", "--buffer", 512) as tool:  # holds all of it, however late the tool gets to run
        begin = time.monotonic()
        running = [subprocess.Popen(cli.command("attach", "small", "--repeat", 5000), stdout=subprocess.DEVNULL)
                   for _ in range(4)]
        assert [process.wait() for process in running] == [0] * 4
        seconds = time.monotonic() - begin
    seen = document(tool.end())
    events = sum(event["seen"] for event in seen["events"].values())
    print(f"{20000 / seconds:.0f} attaches a second, {events / seconds:.0f} events a second; tracepoints skipped: {seen['skipped']}")
    assert (seen["attaches"], seen["lost"]) == (20000, 0)


@pytest.fixture
def emit(build):
    program = build / "tests/bpf/emit"
    assert program.exists(), "run make test-bpf"

    def run(rate, seconds, threads):
        out = subprocess.run([program, str(rate), str(seconds), str(threads)], check=True, capture_output=True, text=True)
        count, ns = map(int, out.stdout.split())
        print(f"{count / ns * 1e9:.0f} events a second of {rate}")
        return count
    run.program = program
    return run


def test_all_of_500000_events_a_second_are_seen_or_counted_as_lost(lat, emit):
    with lat.following("--json", "--no-kernel", "--buffer", 1, "--file", emit.program) as tool:
        sent = emit(500000, 3, 1) + emit(500000, 2, 2)
    event = document(tool.end())["events"]["upload__submitted"]
    print(event)
    assert event["seen"] + event["lost"] == sent


def test_what_a_stopped_tool_loses_is_counted_exactly(lat, emit):
    with lat.following("--json", "--no-kernel", "--buffer", 1, "--file", emit.program) as tool:
        tool.process.send_signal(19)  # SIGSTOP: the buffer fills up
        sent = emit(100000, 1, 1)
        tool.process.send_signal(18)  # SIGCONT
    seen = document(tool.end())
    event = seen["events"]["upload__submitted"]
    assert event["lost"] > 0 and event["seen"] > 0 and event["seen"] + event["lost"] == sent
    assert seen["lost"] >= event["lost"]


def test_stripped_files_in_another_mount_namespace_are_found(lat, kernel, build, binaries, folder, small, not_sanitized):
    inside = folder / "inside"
    inside.mkdir()
    script = f"""mount -t tmpfs none {inside} && cp {binaries.broker} {binaries.cli} {inside} && strip {inside}/ipc-cached \
                 {inside}/ipc-cache && exec {inside}/ipc-cached --dir {folder}/broker"""
    with open(f"{folder}/broker.log", "w", encoding="ascii") as log:
        broker = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=log, stderr=log)
    try:
        wait_until(lambda: os.path.exists(f"{folder}/broker/broker.sock"), "the broker")
        assert not list(inside.iterdir())  # from here they cannot be seen
        enter = ["nsenter", "-t", str(broker.pid), "-m"]
        command = [*enter, f"{inside}/ipc-cache", "--dir", f"{folder}/broker"]
        subprocess.run([*command, "load", small, "--name", "small"], check=True, stdout=subprocess.DEVNULL)
        holder = subprocess.Popen([*command, "attach", "small", "--hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout.readline()
        with lat.following("--json", "-n", 1, "-d", 60) as tool:
            subprocess.run([*command, "attach", "small"], check=True, stdout=subprocess.DEVNULL)
            seen = document(tool.wait())
        holder.communicate()
    finally:
        broker.terminate()
        broker.wait()
    assert seen["attaches"] == 1 and "broker" in seen["phases_us"]
    assert {f"{inside}/ipc-cached", f"{inside}/ipc-cache"} <= set(seen["files"])


def test_one_attach_as_a_trace_and_as_folded_stacks(lat, cli, resident, tmp_path, broker):
    with lat.following("-n", 1, "-d", 60, "--trace", tmp_path / "t.json", "--folded", tmp_path / "f.txt",
                       "--slower-than", 0) as tool:
        cli("attach", "small", expect=0)
        text = tool.wait().text
    assert "small in" in text and "most of it" in text
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert slices.keys() >= {"connect", "attach", "request", "broker", "manifest", "map", "import", "mapping", "mmap"}
    assert slices["broker"]["pid"] == broker.pid != slices["attach"]["pid"]
    outer, inner = slices["attach"], slices["broker"]  # on one axis
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"ipc-cache", "ipc-cached"} <= names
    assert {event["ph"] for event in events} >= {"X", "i", "M"}  # page faults are instants
    stacks = dict(line.rsplit(" ", 1) for line in (tmp_path / "f.txt").read_text().splitlines())
    assert "ipc-cache;small;attach;request;broker" in stacks


def test_a_load_shows_paths_and_block_requests(lat, cli, broker, resident, folder):
    path = pathlib.Path(resident) / "model.safetensors"
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    with lat.following("--json") as tool:
        for how in "mmap", "buffered":
            cli("load", resident, "--replace", "--name", "small", "--io", how, expect=0)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        cli("load", resident, "--replace", "--name", "small", "--io", "direct", expect=0)
        time.sleep(0.2)
    os.close(fd)
    mapped, buffered, direct = document(tool.end())["loads"]
    for load, how in (mapped, "mapped"), (buffered, "buffered"):
        assert load["reads"][how]["bytes"] == path.stat().st_size and load["model"] == "small"
        assert load["hashed_bytes"] == path.stat().st_size
    assert direct["reads"]["direct"]["reads"] + direct["reads"]["buffered"]["reads"] > 0


def test_a_gpus_uploads_imports_and_access_are_seen(lat, broker, small, folder):
    fake = FakeDriver(folder)
    broker.leaves_models = True
    with lat.following("--json", "-n", 1, "-d", 60) as tool:
        broker.cli("load", small, "--name", "small", "--device", "cuda:1", prefix=fake.prefix(), expect=0)
        broker.cli("attach", "small", prefix=fake.prefix(), expect=0)
        seen = document(tool.wait())
    assert seen["events"]["upload__submitted"]["seen"] == seen["events"]["upload__completed"]["seen"] > 0
    assert seen["events"]["segment__full"]["seen"] == seen["loads"][0]["segments"]
    assert seen["loads"][0]["upload_bytes"] >= seen["loads"][0]["bytes"]
    assert seen["phases_us"].keys() >= {"upload", "import", "mapping", "access"}
    assert fake.take("leaks") == ""


def test_ioctls_on_a_drivers_device_are_timed(lat, emit, tmp_path):
    with lat.following("--json", "--file", emit.program) as tool:
        subprocess.run([emit.program, "ioctl"], check=True)
        time.sleep(0.1)
    seen = document(tool.end())
    assert seen["phases_us"]["driver ioctl"]["count"] == 1 and seen["events"]["system_call"]["seen"] == 1


def test_without_privileges_it_says_what_to_do(lat, place, other_users):
    copy = place / "bin/ipc-cache-lat"
    shutil.copy(lat.path, copy)
    for words in (), ("--json",):
        done = subprocess.run(["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", copy, *words], check=False,
                              capture_output=True, text=True)
        assert done.returncode == 6
        assert "not permitted to load BPF programs: run it as root" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == 6


def test_without_btf_it_says_so_and_the_probes_alone_still_work(lat, cli, resident):
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/kernel/btf && exec "$0" "$@"']
    done = lat("-d", 1, prefix=hide, expect=7)
    assert "/sys/kernel/btf/vmlinux is missing" in done.err and "--no-kernel" in done.err
    with lat.following("--json", "-n", 3, "-d", 60, "--no-kernel", prefix=hide) as tool:
        cli("attach", "small", "--repeat", 3, expect=0)
        assert document(tool.wait())["attaches"] == 3


def test_an_old_kernel_is_told(lat):
    import tracing  # pylint: disable=import-outside-toplevel
    done = lat("-d", 1, expect=7, preexec_fn=tracing.forbid_bpf)
    assert "Linux 5.15 is needed" in done.err and os.uname().release in done.err


def test_files_that_are_not_there_or_have_no_probes(lat, folder, build):
    assert "No such file" in lat("--file", "/nonexistent", expect=3).err
    # Nobody else's processes, and no place where something is installed.
    alone = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "env", "-u", "LD_LIBRARY_PATH", "PATH=/nonexistent"]
    own = folder / "lone/ipc-cache-lat"
    own.parent.mkdir()
    shutil.copy(lat.path, own)
    places = "/usr/bin:/usr/local/bin:/usr/sbin:/usr/local/sbin"
    if shutil.which("ipc-cache", path=places) or shutil.which("ipc-cached", path=places):
        pytest.skip("ipc-cache is installed here, so something is always found")
    done = subprocess.run([*alone, own, "-d", "1"], check=False, capture_output=True, text=True)
    assert done.returncode == 3 and "neither a running nor an installed" in done.stderr
    done = subprocess.run([*alone, own, "-d", "1", "--file", "/bin/true"], check=False, capture_output=True, text=True)
    assert done.returncode == 4 and "/bin/true has no probes" in done.stderr


@pytest.mark.parametrize("words", [["--pid", "x"], ["-n", "0"], ["--buffer", "3"], ["argument"], ["--unknown"]])
def test_wrong_arguments(lat, words):
    assert lat(*words, expect=2).err


def test_the_table_and_the_histogram(lat, cli, resident):
    with lat.following("-n", 5, "-d", 60, "--histogram", "--interval", 1) as tool:
        time.sleep(1.2)
        cli("attach", "small", "--repeat", 5, expect=0)
        text = tool.wait().text
    assert "0 events lost" in text and "PHASE" in text and "|@@@@" in text
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if len(line.split()) == 6 and line.split()[1].isdigit()}
    assert rows["total"] == rows["connect"] == rows["broker"] == "5"
