"""What the benchmarks share: a private broker, interleaved rounds, and how figures are printed.

Run with the tests' Python after `make test` made it: .venv-test/bin/python tests/bench/NAME.py [--build build]. Machines
are noisy: whatever is compared is measured in one run, in turn, and given as minimum, median and maximum over the rounds.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "system"))  # protocol.py, manifest.py, models.py

ROUNDS = 5


def arguments(description, **more):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", default=str(HERE.parent.parent / "build"), help="folder of the binaries")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    for name, default in more.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return parser.parse_args()


class Broker:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.process = subprocess.Popen([f"{build}/ipc-cached", "--dir", folder], stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        if "ready" not in line:
            sys.exit(f"the broker did not start: {line}")

    def run(self, *words):
        """The JSON that a verb of ipc-cache prints."""
        verb, rest = words[0], list(words[1:])
        done = subprocess.run([f"{self.build}/ipc-cache", verb, "--dir", self.folder, "--json", *rest],
                              stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"ipc-cache {' '.join(words)}: {done.stdout}")
        return json.loads(done.stdout) if done.stdout else None

    def resident_kib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1))

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def broker(build):
    with tempfile.TemporaryDirectory() as folder:
        started = Broker(build, folder + "/broker")
        try:
            yield started
        finally:
            started.process.send_signal(signal.SIGTERM)
            started.process.wait()
            started.process.stderr.close()


def percentile(values, percent):
    """Nearest rank, as `ipc-cache attach --json` has it."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def row_of(values):
    """Minimum, median and maximum."""
    return min(values), statistics.median(values), max(values)


def row(label, values, unit, digits=1):
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{label:<44} {low:>10.{digits}f} {middle:>10.{digits}f} {high:>10.{digits}f}  {unit}")


def heading(what):
    print(f"{what:<44} {'min':>10} {'median':>10} {'max':>10}")
