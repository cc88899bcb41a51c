"""Finding a model's directory, with a stub in the place of the Hugging Face Hub."""

import types

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from skipjax import hub

FILES = ("config.json", "tokenizer.json", "pytorch_model.bin", "flax_model.msgpack", "README.md")


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """The hub with one repository; collects what is asked of it."""
    asked = []

    def set_up(files=FILES, listing_error=None, download_error=None):
        class Api:
            def model_info(self, name, timeout):
                if listing_error is not None:
                    raise listing_error
                return types.SimpleNamespace(siblings=[types.SimpleNamespace(rfilename=file) for file in files])

        def download(name, allow_patterns=None, local_files_only=False):
            asked.append((name, allow_patterns, local_files_only))
            if download_error is not None:
                raise download_error
            return str(tmp_path)

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return asked

    return set_up


def test_only_what_is_needed(stub, tmp_path):
    asked = stub()
    assert hub.resolve("facebook/opt-125m") == tmp_path
    name, patterns, _ = asked[0]
    assert name == "facebook/opt-125m"
    assert {"config.json", "generation_config.json", "tokenizer.json", "pytorch_model.bin"} <= set(patterns)
    assert not any("msgpack" in pattern or "safetensors" in pattern for pattern in patterns)


def test_safetensors_are_preferred(stub):
    asked = stub((*FILES, "model.safetensors", "model-00001-of-00002.safetensors"))
    hub.resolve("a/b")
    assert [pattern for pattern in asked[0][1] if "model" in pattern and pattern != "tokenizer.model"] == [
        "spiece.model",
        "model.safetensors",
    ]
    stub((*FILES, "model.safetensors.index.json", "model-00001-of-00002.safetensors"))
    hub.resolve("a/b")
    assert {"model.safetensors.index.json", "model-*-of-*.safetensors"} <= set(asked[1][1])
    assert "pytorch_model.bin" not in asked[1][1]


def test_no_weights(stub):
    stub(("config.json", "tf_model.h5"))
    with pytest.raises(ValueError, match=r"'a/b' must hold model.safetensors or pytorch_model.bin"):
        hub.resolve("a/b")


def test_offline_with_an_earlier_download(stub, tmp_path):
    asked = stub(listing_error=OfflineModeIsEnabled("offline mode is enabled"))
    assert hub.resolve("a/b") == tmp_path
    assert asked == [("a/b", None, True)]


def test_offline(stub):
    stub(listing_error=OfflineModeIsEnabled("offline mode is enabled"), download_error=LocalEntryNotFoundError("no"))
    with pytest.raises(FileNotFoundError, match=r"^'a/b' is not a directory here and .* cannot be reached .*give the"):
        hub.resolve("a/b")


def test_unknown_repository(stub):
    stub(listing_error=_hub_error(RepositoryNotFoundError))
    with pytest.raises(FileNotFoundError, match=r"^'a/b' is neither a directory here nor a repository on the Hugg"):
        hub.resolve("a/b")


def test_gated_repository(stub):
    stub(download_error=_hub_error(GatedRepoError))
    with pytest.raises(ValueError, match=r"^hub repository 'a/b' is gated: accept its terms .* `hf auth login`"):
        hub.resolve("a/b")


@pytest.mark.parametrize("name", ["missing", "./a/b", "/a/b", "a/b/c", "a b/c", "", "~/nowhere/b"])
def test_no_such_directory(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="path must be a model directory or a Hugging Face Hub id"):
        hub.resolve(name)


def test_a_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="path must be a directory, got the file"):
        hub.resolve(tmp_path / "model.safetensors")


def _hub_error(kind):
    return kind("404", response=types.SimpleNamespace(headers={}, request=None))
