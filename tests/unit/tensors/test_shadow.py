"""Both ends of a chain: what a learner sends, engines rebuild bit for bit or refuse."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from asyncopd.records import Manifest, SendOrder, Version, WeightFile
from asyncopd.tensors.files import TornWeights
from asyncopd.tensors.mapped import write_tensors
from asyncopd.tensors.sender import Sender
from asyncopd.tensors.shadow import Shadow


class Learner:
    """Tensors that move a little at each step, and the files sent of them."""

    def __init__(self, directory: Path | str, dtype: torch.dtype = torch.bfloat16, **order: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tensors = {
            "embed": torch.randn(400, 65, generator=generator).to(dtype),
            "norm": torch.ones(65, dtype=dtype),
            "frozen": torch.zeros(3, 3, dtype=dtype),
        }
        self.sender = Sender()
        self.step = 0
        self.files: list[WeightFile] = []
        self._directory = directory
        self._order = {"format": "delta", **order}
        self._generator = generator

    def move(self, share: float = 0.02) -> None:
        self.step += 1
        for name in ("embed", "norm"):
            moved = torch.rand(self.tensors[name].shape, generator=self._generator) < share
            self.tensors[name] = torch.where(moved, self.tensors[name] * 1.01, self.tensors[name])

    def send(self) -> WeightFile:
        """Send the tensors as they are, on what was sent before."""
        base = self.files[-1].version if self.files else None
        path = f"{self._directory}/{self.step}"
        file = self.sender.send(
            SendOrder(version=Version(0, self.step), path=path, base=base, **self._order), self.tensors.items()
        )
        self.files = [*self.files, file] if file.base is not None else [file]
        return file

    @property
    def manifest(self) -> Manifest:
        return Manifest(files=tuple(self.files))

    def is_as(self, shadow: Shadow) -> bool:
        return list(shadow.tensors) == list(self.tensors) and all(
            torch.equal(shadow.tensors[name].view(torch.uint8), tensor.view(torch.uint8))
            for name, tensor in self.tensors.items()
        )


def anonymous_bytes() -> int:
    """Memory of this process that no file holds."""
    found = re.search(r"^Anonymous: +(\d+) kB$", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    """One that has sent all tensors and a delta."""
    learner = Learner(tmp_path)
    learner.send()
    learner.move()
    learner.send()
    return learner


@pytest.mark.parametrize("scheme", ["", "memory:/"])
@pytest.mark.parametrize("dense", ["mapped", "safetensors"])
def test_a_shadow_follows_a_chain_and_names_what_changed(tmp_path: Path, dense: str, scheme: str) -> None:
    learner, shadow = Learner(f"{scheme}{tmp_path}", dense=dense), Shadow()
    assert learner.send().format == dense
    assert shadow.follow(learner.manifest) == ("embed", "norm", "frozen")
    for _ in range(3):
        learner.move()
        file = learner.send()
        assert file.format == "delta" and file.path.endswith(f"/{learner.step}.delta")
        assert file.nbytes < 0.1 * learner.files[0].nbytes
        assert shadow.follow(learner.manifest) == ("embed", "norm")
        assert shadow.version == file.version and learner.is_as(shadow)
    assert shadow.follow(learner.manifest) == ()


def test_one_that_missed_versions_reads_what_it_missed_and_a_late_one_the_whole_chain(learner: Learner) -> None:
    missed = Shadow()
    missed.follow(learner.manifest)
    for _ in range(5):
        learner.move()
        learner.send()
    Path(learner.files[1].path).unlink()  # behind `missed` already
    assert missed.follow(learner.manifest) == ("embed", "norm")
    assert learner.is_as(missed)
    late = Shadow()
    with pytest.raises(TornWeights, match="is gone"):
        late.follow(learner.manifest)
    assert late.version is None and late.tensors == {}


def test_one_of_another_chain_starts_from_all_tensors(learner: Learner, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Learner(tmp_path / "other")
    other.step = 90
    other.tensors["embed"] += 1
    other.send()
    shadow = Shadow()
    shadow.follow(other.manifest)
    assert shadow.follow(learner.manifest) == ("embed", "norm")
    assert learner.is_as(shadow)


def test_another_keyframe_keeps_the_memory_and_names_what_changed(learner: Learner) -> None:
    shadow = Shadow()
    shadow.follow(learner.manifest)
    where = {name: tensor.data_ptr() for name, tensor in shadow.tensors.items()}
    learner.files = []
    learner.tensors["norm"] = learner.tensors["norm"] * 2
    learner.step += 1
    assert learner.send().format == "mapped"
    assert shadow.follow(learner.manifest) == ("norm",)
    assert learner.is_as(shadow)
    assert {name for name, tensor in shadow.tensors.items() if tensor.data_ptr() == where[name]} == {"embed", "norm"}
    learner.move()
    learner.send()
    shadow.follow(learner.manifest)
    assert learner.is_as(shadow)


def test_a_keyframe_of_another_layout_replaces_all(learner: Learner, tmp_path: Path) -> None:
    shadow = Shadow()
    shadow.follow(learner.manifest)
    tensors = {"embed": torch.ones(2, 2), "norm": learner.tensors["norm"], "new": torch.zeros(1)}
    keyframe = write_tensors(tmp_path / "other", Version(5, 0), tensors.items())
    assert shadow.follow(Manifest(files=(keyframe,))) == ("embed", "new")
    assert list(shadow.tensors) == list(tensors)
    assert all(torch.equal(shadow.tensors[name], tensor) for name, tensor in tensors.items())


def test_nothing_changes_where_any_file_to_be_read_is_torn(learner: Learner) -> None:
    shadow = Shadow()
    shadow.follow(learner.manifest)
    before = {name: tensor.clone() for name, tensor in shadow.tensors.items()}
    for _ in range(2):
        learner.move()
        learner.send()
    torn = Path(learner.files[-1].path)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TornWeights, match="the checksum"):
        shadow.follow(learner.manifest)
    assert shadow.version == Version(0, 1)
    assert all(torch.equal(shadow.tensors[name], tensor) for name, tensor in before.items())
    torn.write_bytes(whole)
    shadow.follow(learner.manifest)
    assert learner.is_as(shadow)


def test_tensors_that_do_not_prove_themselves_are_discarded_and_a_chain_starts_them_afresh(learner: Learner) -> None:
    shadow = Shadow()
    shadow.follow(learner.manifest)
    shadow.tensors["frozen"][0, 0] = 1  # as a bug or a bad memory would
    learner.move()
    learner.send()
    with pytest.raises(TornWeights, match=r"2\.delta: after it the tensors have the checksum .* they are discarded"):
        shadow.follow(learner.manifest)
    assert shadow.version is None and shadow.tensors == {}
    assert shadow.follow(learner.manifest) == ("embed", "norm", "frozen")
    assert learner.is_as(shadow)


def test_a_delta_that_does_not_fit_its_base_is_refused(learner: Learner, tmp_path: Path) -> None:
    shorter = [("embed", torch.zeros(2, 2, dtype=torch.bfloat16))]
    keyframe = write_tensors(tmp_path / "shorter", Version(0, 0), shorter)
    shadow = Shadow()
    with pytest.raises(TornWeights, match=r"1\.delta: embed cannot be changed as it says: .* a block of 4 elements"):
        shadow.follow(Manifest(files=(keyframe, learner.files[1])))
    nameless = write_tensors(tmp_path / "nameless", Version(0, 0), [("other", learner.tensors["embed"])])
    with pytest.raises(TornWeights, match=r"1\.delta: embed cannot be changed as it says"):
        shadow.follow(Manifest(files=(nameless, learner.files[1])))
    assert shadow.version is None and shadow.tensors == {}


def test_files_are_never_written_to_and_may_go_once_followed(learner: Learner) -> None:
    keyframe = Path(learner.files[0].path)
    before = keyframe.read_bytes()
    shadow = Shadow()
    shadow.follow(learner.manifest)
    assert keyframe.read_bytes() == before
    for file in learner.files:
        Path(file.path).unlink()
    learner.move()
    learner.send()
    shadow.follow(learner.manifest)
    assert learner.is_as(shadow)


def test_only_what_deltas_touch_takes_memory(tmp_path: Path) -> None:
    learner = Learner(tmp_path)
    learner.tensors["frozen"] = torch.zeros(16 * 2**20, dtype=torch.bfloat16)
    learner.send()
    learner.move()
    learner.send()
    shadow = Shadow()
    before = anonymous_bytes()
    shadow.follow(learner.manifest)
    taken = anonymous_bytes() - before
    assert learner.is_as(shadow)
    assert taken < learner.tensors["frozen"].nbytes / 4


def test_a_sender_answers_with_all_tensors_where_a_delta_is_not_worth_it(learner: Learner) -> None:
    learner.move(share=1.0)
    learner.tensors["embed"] = torch.randn(400, 65).to(torch.bfloat16)
    assert learner.send().format == "mapped"
    shadow = Shadow()
    shadow.follow(learner.manifest)
    assert learner.is_as(shadow)
    learner.move()
    assert learner.send().base == Version(0, 2)
    shadow.follow(learner.manifest)
    assert learner.is_as(shadow)


def test_a_sender_without_the_base_answers_with_all_tensors(learner: Learner) -> None:
    learner.sender = Sender()  # as after a restart
    learner.move()
    assert learner.send().format == "mapped"
    learner.move()
    assert learner.send().format == "delta"
    learner.files = []  # as for a new set of engines
    learner.move()
    assert learner.send().base is None


def test_a_send_that_failed_costs_the_next_one_its_delta_and_no_more(learner: Learner) -> None:
    learner.move()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            learner.send()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    learner.move()
    assert learner.send().base is None
    learner.move()
    assert learner.send().base == Version(0, 3)
    shadow = Shadow()
    shadow.follow(learner.manifest)
    assert learner.is_as(shadow)


def test_another_model_is_not_taken_for_a_change(learner: Learner) -> None:
    for name, wrong in [
        ("embed", torch.zeros(400, 65)),
        ("embed", torch.zeros(65, 400, dtype=torch.bfloat16)),
        ("more", torch.zeros(1, dtype=torch.bfloat16)),
    ]:
        right = learner.tensors
        learner.step += 1
        learner.tensors = {**right, name: wrong}
        with pytest.raises(ValueError, match=f"{name} is"):
            learner.send()
        learner.tensors = right
        learner.send()
    learner.step += 1
    learner.tensors = dict(reversed(right.items()))
    with pytest.raises(ValueError, match="in their order"):
        learner.send()
    learner.tensors = {name: tensor for name, tensor in right.items() if name != "norm"}
    with pytest.raises(ValueError, match="norm missing"):
        learner.send()


def test_a_manifest_crosses_processes_as_it_is(learner: Learner) -> None:
    again = msgspec.json.decode(msgspec.json.encode(learner.manifest), type=Manifest)
    assert again == learner.manifest
