"""What the built files say of their probes: the notes that tracers read, and the instructions of a silent site."""
import re
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    provider: str
    name: str
    location: int
    semaphore: int
    arguments: int


def probes(path):
    """All sites of a file, from its .note.stapsdt."""
    text = subprocess.run(["readelf", "-nW", path], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+Location: (\S+), Base: \S+, Semaphore: (\S+)\s+Arguments: ?(.*)", text)
    return [Probe(provider, name, int(location, 16), int(semaphore, 16), len(arguments.split()))
            for provider, name, location, semaphore, arguments in found]


def instructions(path):
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True).stdout
    return [(int(address, 16), operation, operands) for address, operation, operands in
            re.findall(r"^\s+([0-9a-f]+):\s+(\S+)[ \t]*(.*)$", text, re.M)]


def semaphore_loads(path):
    """Each load of a semaphore and what follows it: (probe's name, [(address, operation, operands)])."""
    known = {probe.semaphore: probe.name for probe in probes(path)}
    code = instructions(path)
    found = []
    for i, (_, operation, operands) in enumerate(code):
        address = re.search(r"# ([0-9a-f]+)", operands)
        # The address itself, without a load, is taken where a table ends.
        if address and operation != "lea" and int(address.group(1), 16) in known:
            found.append((known[int(address.group(1), 16)], code[i:i + 4]))
    return found
