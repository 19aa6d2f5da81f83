"""What the built files say of their probes: the notes that tracers read, and the instructions of a silent site."""
import re
import subprocess
from dataclasses import dataclass

REGISTER = r"%[er]?([abcd])[xlh]|%[er]?(si|di)l?|%r(8|9|1[0-5])[dwb]?"


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
            re.findall(r"^\s+([0-9a-f]+):\s+(\S+)\s*(.*)$", text, re.M)]


def semaphore_loads(path):
    """Each load of a semaphore, with the test and the branch that follow it: (semaphore, [operations])."""
    known = {probe.semaphore for probe in probes(path)}
    code = instructions(path)
    found = []
    for i, (_, operation, operands) in enumerate(code):
        address = re.search(r"# ([0-9a-f]+)", operands)
        if not address or operation == "lea" or int(address.group(1), 16) not in known:
            continue
        found.append((int(address.group(1), 16), code[i:i + 40]))
    return found


def silent_site(code):
    """(how many instructions the probe adds, whether its branch is not taken) at the load that `code` starts with.

    The compiler may put the function's own instructions between; they are not the probe's.
    """
    _, operation, operands = code[0]
    if operation == "cmpw":
        test, added = 0, 1
    else:
        assert operation == "movzwl", code[0]
        register = register_of(operands.split(",")[1])
        test = next(i for i, (_, op, what) in enumerate(code[1:], 1)
                    if op == "test" and register_of(what.split(",")[0]) == register)
        added = 2
    branch = next(op for _, op, _ in code[test + 1:] if op.startswith("j"))
    return added + 1, branch == "jne"


def register_of(text):
    return next(group for group in re.search(REGISTER, text).groups() if group)
