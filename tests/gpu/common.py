"""What tests/gpu/run and tests/gpu/two share: options, environment, processes, and the report.

Both print as they go, and write FOLDER/report.md and FOLDER/report.json. Exit status 1 if a bar is missed. They need the
programs in --build (default: build, made with `make gpu-programs`; on a machine without the libraries' headers bring the
output of tests/gpu/bundle, which is linked so that only the C library is needed). --fake runs the same on tests/fake-cuda,
small.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MIB, GIB = 1 << 20, 1 << 30
SEGMENTS = 14
parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--fake", action="store_true")
parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build")
parser.add_argument("--gib", type=int, default=54)
parser.add_argument("--disk", type=pathlib.Path, help="a folder on a disk, to load from; default: the temporary folder")
parser.add_argument("--rounds", type=int, default=200)
parser.add_argument("--load-rounds", type=int, default=5, help="of each way to load; one more does not count")
parser.add_argument("--only", help="these steps alone, with commas: the names of the functions that `attempt` is called with")
options = parser.parse_args()
build = options.build.resolve()
place = pathlib.Path(tempfile.mkdtemp(prefix="ipc-cache-gpu-"))
SEGMENT_BYTES = -(-options.gib * GIB // SEGMENTS // (2 * MIB)) * (2 * MIB) if not options.fake else 4 * MIB
TOTAL = SEGMENTS * SEGMENT_BYTES
started = time.monotonic()
figures, rows, missed = {}, [], []


def prepare(fake_gpus):
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["IPC_CACHE_DIR"] = str(place / "broker")
    libraries = [str(HERE / "lib")] + ([str(build / "tests" / "fake")] if options.fake else [])
    os.environ["LD_LIBRARY_PATH"] = ":".join(libraries + os.environ.get("LD_LIBRARY_PATH", "").split(":")).rstrip(":")
    if options.fake:
        os.environ["FAKE_CUDA_SCOPE"] = f"run{os.getpid()}"
        os.environ["FAKE_CUDA_MEMORY"] = str(768 * MIB)
        os.environ["FAKE_CUDA_GPUS"] = str(fake_gpus)


def say(text):
    print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)


def bar(name, holds, figure, limit=""):
    """One line of the report."""
    rows.append((name, figure, limit, "yes" if holds else "NO"))
    if not holds:
        missed.append(name)
    say(f"{'ok  ' if holds else 'MISS'} {name}: {figure}{' (bar: ' + limit + ')' if limit else ''}")


def beside(name, figure):
    """One without a bar."""
    rows.append((name, figure, "", ""))
    say(f"     {name}: {figure}")


def run(*words, prefix=(), timeout=240, check=True, **more):
    done = subprocess.run([*prefix, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=timeout, check=False, **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{words}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done


def program(name):
    return build / "tests" / "gpu" / name


def play(name, *words, **more):
    """A part of actor.c or pair.c, to its end; the last thing that it said."""
    return json.loads(run(program(name), *words, **more).stdout.strip().splitlines()[-1])


def actor(*words, **more):
    return play("actor", *words, **more)


def cli(*words, **more):
    return json.loads(run(build / "ipc-cache", *words, "--json", **more).stdout)


def launch(name, *words, prefix=(), **more):
    """A process of its own."""
    return subprocess.Popen([*prefix, str(program(name)), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, **more)


def start(*words, name="actor", **more):
    """A process of its own that has said its first line."""
    process = launch(name, *words, **more)
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{words} said nothing")
    return process, json.loads(line)


def smi(query, what="--query-gpu"):
    return run("nvidia-smi", f"{what}={query}", "--format=csv,noheader,nounits").stdout.strip()


def settled(condition, seconds=5):
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return holds


@contextlib.contextmanager
def broker():
    log = open(options.folder / "broker.log", "w", encoding="utf-8")
    process = subprocess.Popen([build / "ipc-cached"], stdout=log, stderr=log)
    try:
        settled(lambda: (place / "broker" / "broker.sock").exists())
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def holds_no_driver(process):
    maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
    rss = next(line.split()[1] for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
               if line.startswith("VmRSS"))
    bar("broker has no libcuda", "libcuda" not in maps, f"RSS {int(rss) / 1024:.1f} MiB")


def attempt(step, *arguments):
    if options.only is not None and step.__name__ not in options.only.split(","):
        beside(step.__name__, "not run, see the command")
        return
    try:
        step(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        bar(step.__name__, False, f"failed: {error}".replace("\n", " ")[:400])


def known_commit():
    """Of a bundle, or of the checkout where there is git."""
    if (HERE / "COMMIT").exists():
        return (HERE / "COMMIT").read_text().strip()
    if shutil.which("git") is None:
        return "unknown: there is no git"
    return run("git", "-C", HERE, "rev-parse", "--short", "HEAD", check=False).stdout.strip()


def report():
    """Writes it; the exit status."""
    card = "fake driver" if options.fake else "; ".join(smi("name,memory.total,driver_version").splitlines())
    commit = known_commit()
    lines = ["# GPU report", "", f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
             f"- card, memory, driver: {card}", f"- kernel: {os.uname().release}, {os.cpu_count()} processors",
             f"- commit: {commit}", f"- command: tests/gpu/{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}",
             f"- took: {time.monotonic() - started:.0f} s", "", "| what | figure | bar | holds |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    (options.folder / "report.md").write_text("\n".join(lines) + "\n")
    (options.folder / "report.json").write_text(json.dumps(figures, indent=1))
    say(f"{len(missed)} bars missed; {options.folder}/report.md")
    return 1 if missed else 0
