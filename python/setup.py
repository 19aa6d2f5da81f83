"""Builds the C parts with the project's Makefile and puts library, broker and command into the package.

The C sources lie above this folder in a clone, and under csrc/ in a source distribution, which copies them there. Nothing
is compiled against Python, so one wheel serves every version of it on the same kind of machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
BUNDLED = HERE / "csrc"
ROOT = BUNDLED if BUNDLED.exists() else HERE.parent
PRODUCTS = {"lib": ["libipc_cache.so"], "bin": ["ipc-cache", "ipc-cached"]}
# What the Makefile needs to build `all`.
SOURCES = [
    "Makefile",
    "VERSION",
    "LICENSE",
    "manifest",
    "loader",
    "broker",
    "bpf/bpf.mk",
    "bpf/probes.h",
    "tools/*.[ch]",
    "tools/install.mk",
    "tests/*.mk",
]


def make(build: Path) -> None:
    """The C parts that the package has, into `build`."""
    command = ["make", f"-j{os.cpu_count() or 1}", f"BUILD={build}", "BPF=0", "all"]
    try:
        subprocess.run(command, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            "ipc-cache: the C parts cannot be built; they need gcc, make, pkg-config and the development packages of "
            f"xxhash, jansson, inih, liburing and libseccomp (tools/install-deps build installs them): {error}"
        ) from None


class Build(build_py):
    def run(self) -> None:
        super().run()
        package = HERE / "ipc_cache" if self.editable_mode else Path(self.build_lib).resolve() / "ipc_cache"
        build = Path(self.get_finalized_command("build").build_temp).resolve() / "c"
        make(build)
        for folder, names in PRODUCTS.items():
            (package / folder).mkdir(parents=True, exist_ok=True)
            for name in names:
                shutil.copy(build / name, package / folder / name)


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for pattern in SOURCES:
            for source in ROOT.glob(pattern):
                target = Path(base_dir) / "csrc" / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                if source.is_dir():
                    shutil.copytree(source, target)
                else:
                    shutil.copy(source, target)


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Native(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=(ROOT / "VERSION").read_text().strip(),
    cmdclass={"build_py": Build, "sdist": SourceDistribution, "bdist_wheel": Wheel},
    distclass=Native,
)
