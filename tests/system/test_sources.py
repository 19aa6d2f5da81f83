"""Are the caller's files those that the model was made of?"""
import json
import os
import shutil
import signal
import time

import pytest

import models
from harness import finish, wait_until
from manifest import content_hash
from models import Handmade
from protocol import LOADING


def attach(cli, model, *args, expect):
    return cli("attach", model, "--json", *args, expect=expect)


def rewrite(path, change):
    """In place, with the old times."""
    st = os.stat(path)
    with open(path, "r+b") as file:
        change(file)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def flip_last(file):
    file.seek(-1, os.SEEK_END)
    last = file.read(1)
    file.seek(-1, os.SEEK_END)
    file.write(bytes([last[0] ^ 1]))


@pytest.fixture
def path(resident):
    return os.path.join(resident, "model.safetensors")


def test_untouched_files_are_the_same(cli, resident, path):
    assert attach(cli, resident, expect=0).json["sources"] == "same"
    assert attach(cli, "small", "--sources", resident, expect=0).json["sources"] == "same"
    assert attach(cli, "small", expect=0).json["sources"] == "unchecked"


def test_a_file_of_another_size_is_a_mismatch(broker, cli, resident, path):
    rewrite(path, lambda file: (file.seek(0, os.SEEK_END), file.write(b"more")))
    refused = attach(cli, resident, expect=4)
    error = refused.json["error"]
    assert error["name"] == "mismatch" and error["field"] == "model.safetensors"
    assert "bytes" in error["expected"] and error["expected"] != error["got"] and "--replace" in refused.err
    assert attach(cli, resident, "--verify", "hash", expect=4)
    assert attach(cli, resident, "--verify", "none", expect=0).json["sources"] == "unchecked"
    wait_until(lambda: broker.stat()["leases"] == 0, "no lease to be left by the refusals")


def test_a_missing_file_is_a_mismatch(broker, cli, resident, path):
    os.rename(path, path + ".away")
    error = attach(cli, resident, expect=4).json["error"]
    assert (error["field"], error["expected"], error["got"]) == ("model.safetensors", "present", "missing") or \
        (error["field"], error["expected"], error["got"]) == ("model.safetensors", "missing", "present")
    assert broker.serves()


@pytest.mark.parametrize("touch", ["touched", "mode changed", "hard link", "copied over", "moved and back"])
def test_a_file_whose_metadata_tell_nothing_is_unknown_until_hashed(broker, cli, resident, path, touch):
    if touch == "touched":
        models.age(path, 2 * models.HOUR)
    elif touch == "mode changed":
        os.chmod(path, 0o600)
    elif touch == "hard link":
        os.link(path, path + ".link")
    elif touch == "copied over":
        shutil.copy2(path, path + ".copy")
        os.replace(path + ".copy", path)
    else:
        os.rename(path, path + ".away")
        os.rename(path + ".away", path)
    refused = attach(cli, resident, expect=6)
    assert refused.json["error"]["name"] == "unknown" and "--verify hash" in refused.err
    assert attach(cli, resident, "--verify", "hash", expect=0).json["sources"] == "verified"
    assert attach(cli, resident, "--verify", "none", expect=0).json["sources"] == "unchecked"
    assert broker.serves()


def test_other_content_of_the_same_size_and_times_is_found_by_hash(cli, resident, path):
    rewrite(path, flip_last)
    assert attach(cli, resident, expect=6).json["error"]["name"] == "unknown"
    error = attach(cli, resident, "--verify", "hash", expect=4).json["error"]
    assert error["name"] == "mismatch" and error["field"] == "model.safetensors" and error["expected"] != error["got"]


def test_a_file_written_just_before_the_load_is_known_again(broker, cli, folder):
    """The load waits until the file's times can tell."""
    broker.leaves_models = True
    model = models.write_small(folder / "fresh")
    os.utime(os.path.join(model, "model.safetensors"))
    cli("load", model, expect=0)
    assert attach(cli, model, expect=0).json["sources"] == "same"


def test_an_index_written_just_before_the_load_is_known_again(broker, cli, folder):
    broker.leaves_models = True
    models.write_sharded(folder / "fresh", shards=2)
    os.utime(folder / "fresh" / "model.safetensors.index.json")
    cli("load", folder / "fresh", expect=0)
    assert attach(cli, folder / "fresh", expect=0).json["sources"] == "same"


@pytest.mark.parametrize("seconds, sources", [(0.001, None), (3, "same")])
def test_times_taken_too_soon_after_the_last_write_prove_nothing(broker, client, cli, folder, seconds, sources):
    """A write in the same tick of a coarse clock would have left them as they are."""
    broker.leaves_models = True
    path = models.write_file(folder / "model.safetensors", models.small_tensors())
    made, st = Handmade(), os.stat(path)
    made.draft.source("model.safetensors", st.st_size, content_hash(path.read_bytes()), device=st.st_dev, inode=st.st_ino,
                      mtime_ns=st.st_mtime_ns, ctime_ns=st.st_ctime_ns,
                      stat_ns=max(st.st_mtime_ns, st.st_ctime_ns) + int(seconds * 10**9))
    made.publish(client)
    if sources:
        assert attach(cli, "handmade", "--sources", path, expect=0).json["sources"] == sources
    else:
        assert attach(cli, "handmade", "--sources", path, expect=6).json["error"]["name"] == "unknown"
    verified = attach(cli, "handmade", "--sources", path, "--verify", "hash", expect=0).json["sources"]
    assert verified == (sources or "verified")


def test_a_copy_elsewhere_is_compared_by_its_content(cli, folder, resident):
    shutil.copytree(resident, folder / "copy")
    assert attach(cli, folder / "copy", expect=3).json["error"]["name"] == "not-found"
    assert attach(cli, "small", "--sources", folder / "copy", expect=6).json["error"]["name"] == "unknown"
    assert attach(cli, "small", "--sources", folder / "copy", "--verify", "hash", expect=0).json["sources"] == "verified"


def test_one_changed_shard_of_many_is_named(broker, cli, folder):
    broker.leaves_models = True
    models.write_sharded(folder / "sharded", shards=3)
    cli("load", folder / "sharded", expect=0)
    name = "model-00002-of-00003.safetensors"
    rewrite(folder / "sharded" / name, flip_last)
    assert name in attach(cli, folder / "sharded", expect=6).err
    assert attach(cli, folder / "sharded", "--verify", "hash", expect=4).json["error"]["field"] == name


def test_loading_changed_files_again_asks_for_replace(cli, resident, path):
    rewrite(path, flip_last)
    refused = cli("load", resident, expect=4)
    assert "--replace" in refused.err
    assert cli("load", resident, "--replace", "--json", expect=0).json["generation"] == 2
    assert attach(cli, resident, "--verify", "hash", expect=0)


def test_a_fifo_in_the_place_of_a_file_hangs_nobody(cli, resident, path):
    os.unlink(path)
    os.mkfifo(path)
    assert "no regular file" in attach(cli, resident, expect=5).err


# ---- files that change while they are loaded ----


def stopped_while_loading(broker, process):
    """SIGSTOP as soon as it has claimed the key: its files are open, and not yet read. False: it was too fast."""
    with broker.connect() as client:
        while process.poll() is None:
            listed = client.list()
            if listed:
                process.send_signal(signal.SIGSTOP)
                return client.list()[0]["state"] == LOADING
            time.sleep(0)
    return False


CHANGES = {
    "appended to": lambda path: rewrite(path, lambda file: (file.seek(0, 2), file.write(b"x"))),
    "cut": lambda path: os.truncate(path, os.stat(path).st_size - 1),
    "written to": lambda path: rewrite(path, flip_last),
    "touched": models.age,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_loaded_is_not_published(broker, cli, folder, change):
    path = models.write_sparse(folder / "model.safetensors", 64 << 20)
    with cli.running("load", path, "--json") as load:
        assert stopped_while_loading(broker, load), "the load was over before it could be stopped"
        CHANGES[change](path)
        load.send_signal(signal.SIGCONT)
        failed = finish(load)
    assert failed.status == 5, failed
    assert "model.safetensors" in failed.err
    assert broker.becomes_empty()


def test_a_file_that_is_replaced_while_it_is_loaded_is_not_published(broker, cli, folder):
    path = models.write_sparse(folder / "model.safetensors", 64 << 20)
    other = models.write_sparse(folder / "other.safetensors", 64 << 20, "other")
    with cli.running("load", path) as load:
        assert stopped_while_loading(broker, load), "the load was over before it could be stopped"
        os.replace(other, path)
        load.send_signal(signal.SIGCONT)
        failed = finish(load)
    assert failed.status == 5 and "model.safetensors" in failed.err, failed
    assert broker.becomes_empty()


def test_an_index_that_changes_while_its_model_is_loaded_is_not_published(broker, cli, folder):
    os.mkdir(folder / "model")
    models.write_sparse(folder / "model" / "one.safetensors", 64 << 20)
    index = folder / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"big": "one.safetensors"}}))
    models.age(index)
    with cli.running("load", folder / "model") as load:
        assert stopped_while_loading(broker, load), "the load was over before it could be stopped"
        index.write_text(json.dumps({"weight_map": {"big": "two.safetensors"}}))
        load.send_signal(signal.SIGCONT)
        failed = finish(load)
    assert failed.status == 5 and "index.json: changed while being read" in failed.err, failed
    assert broker.becomes_empty()


def test_an_index_that_came_after_the_load_makes_it_another_model(cli, folder, resident):
    models.write_sharded(folder / "sharded", shards=2)
    shutil.copy(folder / "sharded" / "model.safetensors.index.json", resident)
    failed = attach(cli, resident, expect=4)
    assert failed.json["error"]["field"] == "model.safetensors.index.json"


def test_the_index_of_a_sharded_model_is_one_of_its_sources(broker, cli, folder):
    broker.leaves_models = True
    models.write_sharded(folder / "sharded", shards=2)
    cli("load", folder / "sharded", expect=0)
    attach(cli, folder / "sharded", expect=0)
    with open(folder / "sharded" / "model.safetensors.index.json", "a", encoding="ascii") as index:
        index.write(" ")
    assert attach(cli, folder / "sharded", expect=4).json["error"]["field"] == "model.safetensors.index.json"
