"""The command's contract: exit statuses, JSON, pipes, signals."""
import json
import os
import pty
import select
import signal
import subprocess

import pytest

import manifest
import models
from harness import check_clean, finish, wait_until
from models import Handmade
from protocol import LOADING

VERBS = ["load", "ls", "attach", "dump", "verify", "evict", "inspect", "ping", "stat", "doctor"]
MODEL_VERBS = ["attach", "dump", "verify", "evict"]


def error_of(result):
    """The error document; stderr says the same."""
    document = result.json
    assert list(document) == ["error"]
    error = document["error"]
    assert set(error) == {"code", "name", "message", "field", "expected", "got"}
    assert error["message"].split(":")[0] in result.err
    return error


# ---- exit statuses ----


@pytest.mark.parametrize("arguments", [
    [], ["nonsense"], ["--nonsense"], ["ls", "surplus"], ["ls", "--nonsense"], ["ping", "surplus"], ["stat", "surplus"],
    ["load"], ["load", "a", "b"], ["load", "a", "--visible", "everybody"], ["load", "a", "--visible", "group:no-such"],
    ["load", "a", "--threads", "0"], ["load", "a", "--threads", "many"], ["load", "a", "--wait", "-1"],
    ["attach"], ["attach", "a", "b"], ["attach", "a", "--repeat", "0"], ["attach", "a", "--repeat", "1x"],
    ["attach", "a", "--verify", "maybe"], ["attach", "a", "--wait", "soon"],
    ["dump"], ["dump", "a", "--file", "b"], ["dump", "a", "--raw", "--json"],
    ["evict"], ["evict", "a", "--drain", "--force"], ["evict", "a", "--wait", "5"],
    ["verify"], ["inspect"], ["--timeout", "long", "ls"], ["--timeout", "-5", "ls"], ["--timeout", "99999999999", "ls"],
])
def test_wrong_usage_is_status_2(cli, arguments):
    wrong = cli(*arguments, expect=2)
    assert wrong.out == b"" and "ipc-cache" in wrong.err and "--help" in wrong.err


def test_help_and_version_are_no_errors(cli):
    for arguments in (["--help"], *[[verb, "--help"] for verb in VERBS]):
        shown = cli(*arguments, expect=0)
        assert "Usage: ipc-cache" in shown.text and shown.err == ""
    overview = cli("--help").text
    assert all(f"  {verb} " in overview for verb in VERBS)
    assert cli("--version", expect=0).text.startswith("ipc-cache ")


@pytest.mark.parametrize("verb", [["ls"], ["ping"], ["stat"], ["attach", "x"], ["dump", "x"], ["verify", "x"],
                                  ["evict", "x"], ["load", "MODEL"]], ids=lambda verb: verb[0])
def test_without_a_broker_the_status_is_7(cli, folder, small, verb):
    verb = [small if word == "MODEL" else word for word in verb]
    failed = cli(*verb, "--json", directory=folder / "none", expect=7)
    assert error_of(failed)["name"] == "no-broker" and "ipc-cached" in failed.err
    assert cli(*verb, directory=folder / "none", expect=7).out == b""


@pytest.mark.parametrize("verb", MODEL_VERBS)
def test_a_model_that_is_not_there_is_status_3(cli, verb):
    assert error_of(cli(verb, "nothing", "--json", expect=3))["name"] == "not-found"
    assert "does not exist here" in cli(verb, "/no/such/path", expect=3).err


@pytest.mark.parametrize("verb", ["load", "inspect"])
def test_files_that_are_missing_broken_or_foreign_are_status_3_5_and_6(broker, cli, folder, verb):
    assert error_of(cli(verb, folder / "none", "--json", expect=3))["name"] == "not-found"
    broken = folder / "broken.safetensors"
    broken.write_bytes(b"\x10\0\0\0\0\0\0\0 not json at all..")
    failed = cli(verb, broken, "--json", expect=5)
    assert error_of(failed)["name"] == "invalid" and "broken.safetensors" in failed.err
    foreign = folder / "model.gguf"
    foreign.write_bytes(b"GGUF" + bytes(100))
    refused = cli(verb, foreign, expect=6)
    assert "gguf" in refused.err.lower()
    assert broker.becomes_empty()


def test_loading_twice_with_wait_or_without_is_no_error(broker, cli, resident):
    assert cli("load", resident, expect=0)
    assert cli("load", resident, "--wait", "forever", expect=0)


def test_busy_unknown_and_ambiguous_are_status_6(broker, client, cli, resident):
    Handmade("loading").begin(client)
    assert error_of(cli("attach", "loading", "--json", expect=6))["name"] == "busy"
    models.age(os.path.join(resident, "model.safetensors"), 7200)
    assert error_of(cli("attach", resident, "--json", expect=6))["name"] == "unknown"
    client.close()
    wait_until(lambda: broker.stat()["loading"] == 0, "the claim to go")


def test_a_model_evicted_by_its_path_is_gone(broker, cli, resident):
    cli("evict", resident, expect=0)
    assert broker.becomes_empty()


# ---- JSON ----


def test_every_document_parses_and_has_its_fields(broker, cli, resident):
    key_id = broker.models()[0]["key_id"]
    listed = cli("ls", "--json", expect=0).json["models"][0]
    assert set(listed) == {"name", "key_id", "state", "key", "generation", "owner_uid", "visibility", "visible_gid",
                           "publisher_pid", "created_ns", "bytes", "segments", "tensors", "leases", "holders",
                           "keeper_pid"}
    attached = cli("attach", "small", "--json", "--repeat", 5, expect=0).json
    assert set(attached) == {"name", "key_id", "generation", "bytes", "tensors", "segments", "manifest_bytes", "sources",
                             "pid", "repeat", "times_us"}
    assert attached["repeat"] == 5 and set(attached["times_us"]) == {"connect", "attach", "map", "total"}
    total = attached["times_us"]["total"]
    assert 0 < total["min"] <= total["p50"] <= total["p90"] <= total["p99"] <= total["max"]
    verified = cli("verify", "small", "--json", expect=0).json
    assert set(verified) == {"name", "key_id", "generation", "bytes", "seconds", "damage"} and verified["damage"] == []
    stat = cli("stat", "--json", expect=0).json
    assert stat["models"] == 1 and stat["pid"] == broker.pid and len(stat["instance"]) == 32
    assert cli("ping", "--json", expect=0).json["round_trip_us"] > 0
    dumped = cli("dump", "small", "--json", "--tensors", expect=0).json
    assert dumped["key_id"] == key_id == manifest.key_id(dumped["key"])
    assert {t["name"] for t in dumped["tensors"]} == set(models.small_tensors())
    assert "tensors" not in cli("dump", "small", "--json", expect=0).json
    inspected = cli("inspect", resident, "--json", "--tensors", expect=0).json
    assert inspected["tensor_count"] == len(models.small_tensors()) and len(inspected["files"]) == 1
    doctor = cli("doctor", "--json")
    assert doctor.status in (0, 1) and doctor.json["healthy"] is (doctor.status == 0)
    assert all(f["level"] in ("OK", "WARN", "FAIL") and f["name"] and f["text"] for f in doctor.json["findings"])
    model = broker.models()[0]
    assert cli("evict", "small", "--json", expect=0).json == {"state": "gone", "id": model["id"], "name": "small",
                                                              "key_id": key_id, "holders": []}


@pytest.mark.parametrize(("listed", "level"), [("other", "WARN"), ("other,ipc_cache", "OK"), ("my_ipc_cache", "WARN"), (None, None)])
def test_doctor_looks_at_vllms_plugin_list(cli, monkeypatch, listed, level):
    if listed is not None:
        monkeypatch.setenv("VLLM_PLUGINS", listed)
    found = [f["level"] for f in cli("doctor", "--json").json["findings"] if f["name"] == "VLLM_PLUGINS"]
    assert found == ([level] if level else [])


def test_dump_says_what_the_manifest_says(broker, client, cli, resident):
    dumped = cli("dump", "small", "--json", "--tensors", expect=0).json
    with client.attach("small") as attached:
        found = attached.manifest
        assert dumped["key"] == found.fields and dumped["generation"] == found.header["generation"]
        assert dumped["checksum"] == f"{found.header['checksum']:016x}" and dumped["manifest_bytes"] == len(found.data)
        for shown, tensor in zip(dumped["tensors"], found.tensors, strict=True):
            assert (shown["name"], shown["dtype"], tuple(shown["shape"]), shown["offset"], shown["bytes"]) == \
                (tensor.name, tensor.dtype, tensor.shape, tensor.offset, tensor.bytes)


def test_names_that_would_disturb_a_terminal_are_shown_escaped(broker, client, cli):
    broker.leaves_models = True
    name = "evil \u202e\u200b name"
    Handmade(name).publish(client)
    for arguments in (["ls"], ["attach", name], ["dump", name, "--tensors"]):
        shown = cli(*arguments, expect=0)
        assert "\u202e" not in shown.text and "\\u{202e}" in shown.text
    listed = cli("ls", "--json", expect=0)
    assert listed.out.isascii() and listed.json["models"][0]["name"] == name


# ---- pipes and terminals ----


@pytest.mark.parametrize("file", ["-", "/dev/stdin"])
def test_a_dumped_manifest_is_read_back_from_a_pipe(broker, cli, resident, file):
    raw = cli("dump", "small", "--raw", expect=0)
    assert manifest.Manifest(raw.out).name == "small"
    shown = cli("dump", "small", "--json", "--tensors", expect=0).json
    with subprocess.Popen(cli.command("dump", "small", "--raw"), stdout=subprocess.PIPE) as dump:
        read = cli("dump", "--file", file, "--json", "--tensors", stdin=dump.stdout, expect=0)
    assert read.json == shown


@pytest.mark.parametrize("damage", ["one bit", "cut", "empty", "text"])
def test_a_damaged_manifest_file_is_status_5(broker, cli, folder, resident, damage):
    raw = cli("dump", "small", "--raw", expect=0).out
    path = folder / "manifest"
    path.write_bytes({"one bit": raw[:300] + bytes([raw[300] ^ 1]) + raw[301:], "cut": raw[:-1], "empty": b"",
                      "text": b"hello" * 100}[damage])
    assert error_of(cli("dump", "--file", path, "--json", expect=5))["name"] == "invalid"


def test_a_pipe_gets_no_progress_bar_and_a_terminal_does(broker, cli, folder):
    broker.leaves_models = True
    model = models.write_sparse(folder / "large.safetensors", 512 << 20)
    loaded = cli("load", model, expect=0)
    assert loaded.err == "" and "\r" not in loaded.text and "%" not in loaded.text
    leader, follower = pty.openpty()
    process = subprocess.Popen(cli.command("load", model, "--replace", "--threads", "1"), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    shown = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        shown += part
    os.close(leader)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"%" in shown and shown.endswith(b"\r\x1b[K"), shown[-200:]


def test_output_that_cannot_be_written_is_an_error(cli, resident):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(cli.command("ls", "--json"), stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1 and b"No space left" in done.stderr


def test_a_reader_that_goes_away_kills_nobody(broker, cli, resident):
    with subprocess.Popen(cli.command("dump", "small", "--raw"), stdout=subprocess.PIPE) as dump:
        dump.stdout.close()
        assert dump.wait(60) in (0, 1)
    assert broker.serves()


# ---- damage ----


def test_verify_names_the_damaged_block_and_its_tensors(broker, client, cli):
    broker.leaves_models = True
    block = manifest.BLOCK_BYTES
    content = models.noise(2 * block + 100)
    hashes = bytearray(manifest.block_hashes(content))
    hashes[16] ^= 1
    made = Handmade("damaged", segments=0)
    made.contents, made.sizes = [content], [len(content)]
    made.draft.segment(len(content), bytes(hashes))
    made.draft.tensor("before", "U8", (100,), 0, 0).tensor("across", "U8", (block,), 0, 256)
    made.draft.tensor("inside", "U8", (256,), 0, block + 512).tensor("after", "U8", (50,), 0, 2 * block)
    made.publish(client)
    failed = cli("verify", "damaged", "--json", expect=4)
    assert failed.json["damage"] == [{"segment": 0, "block": 1, "offset": block, "bytes": block,
                                      "tensors": ["across", "inside"]}]
    shown = cli("verify", "damaged", expect=4)
    assert "segment 0 block 1" in shown.text and "inside" in shown.text and "1 damaged block" in shown.err
    assert broker.serves()


def test_a_model_without_hashes_cannot_be_verified_and_says_so(broker, client, cli):
    broker.leaves_models = True
    Handmade(hashes=False).publish(client)
    failed = cli("verify", "handmade")
    assert failed.status == 3 and "hash" in failed.err


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_load_leaves_nothing(broker, cli, folder, number):
    model = models.write_sparse(folder / "large.safetensors", 256 << 20)
    with cli.running("load", model, "--json") as load:
        with broker.connect() as client:
            while load.poll() is None and not client.list():
                pass
            load.send_signal(signal.SIGSTOP)
            assert client.list()[0]["state"] == LOADING, "the load was over before it could be stopped"
        load.send_signal(number)
        load.send_signal(signal.SIGCONT)
        ended = finish(load)
    assert ended.status == 1 and "cancel" in ended.err, ended
    assert json.loads(ended.out)["error"]["name"] == "canceled"
    assert broker.becomes_empty()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_holder_ends_with_status_0_when_told_to(broker, cli, resident, number):
    with cli.holding("small") as holder:
        holder.send_signal(number)
        assert holder.wait(60) == 0
    wait_until(lambda: broker.stat()["leases"] == 0, "the lease to end")


def test_a_holder_ends_with_its_input_but_not_for_want_of_one(broker, cli, resident):
    with cli.holding("small") as holder:
        holder.stdin.write(b"some input that means nothing\n")
        holder.stdin.flush()
        holder.stdin.close()
        assert holder.wait(60) == 0
    with subprocess.Popen(cli.command("attach", "small", "--hold", "--json"), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"{\n"  # from here on it holds
        assert holder.poll() is None and broker.stat()["leases"] == 1
        holder.send_signal(signal.SIGTERM)
        _, err = holder.communicate(timeout=60)
        check_clean(err.decode())
        assert holder.returncode == 0


def test_closed_standard_streams_harm_nobody(broker, cli, resident):
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        command = " ".join(cli.command("attach", "small")) + " " + closed
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
        assert done.returncode in (0, 1)
    assert "intact" in cli("verify", "small", expect=0).text
