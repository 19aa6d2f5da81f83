"""The fake driver for tests: its environment, and what it noted."""
import os
import pathlib

BUILD = pathlib.Path(os.environ.get("IPC_CACHE_BUILD", "build")).resolve()


def uuid(number):
    return f"GPU-fa4e0c0d-0001-4000-8000-{number + 1:012x}"


class FakeDriver:
    """prefix(...) is what to put before a command that shall see this machine's fake GPUs."""

    def __init__(self, folder, gpus=2, memory=64 << 20):
        self.folder, self.gpus, self.memory = folder, gpus, memory
        self.scope = f"{os.getpid()}-{folder.name}"
        self.library = BUILD / "tests" / "fake"
        assert (self.library / "libcuda.so.1").exists(), "make test-system builds it"

    def settings(self, **more):
        base = {"LD_LIBRARY_PATH": self.library, "FAKE_CUDA_GPUS": self.gpus, "FAKE_CUDA_MEMORY": self.memory,
                "FAKE_CUDA_SCOPE": self.scope, "FAKE_CUDA_LEAKS": self.folder / "leaks",
                "FAKE_CUDA_REACHED": self.folder / "reached"}
        return {**base, **more}

    def prefix(self, **more):
        return ["env", *[f"{name}={value}" for name, value in self.settings(**more).items()]]

    def take(self, name):
        """What was noted in a file since the last time."""
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def used(self):
        """Bytes in use of all fake GPUs: memfds that anybody has open or mapped."""
        seen = {}
        mark = f"/memfd:fake-cuda.{self.scope}."
        for process in pathlib.Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                for fd in (process / "fd").iterdir():
                    link = os.readlink(fd)
                    if link.startswith(mark):
                        seen[os.stat(fd).st_ino] = int(link[len(mark):].split()[0].split(".")[1], 16)
                for line in (process / "maps").read_text().splitlines():
                    if mark in line:
                        words = line.split()
                        seen[int(words[4])] = int(words[5][len(mark):].split(".")[1], 16)
            except OSError:  # it has ended
                continue
        return sum(seen.values())
