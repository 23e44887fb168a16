"""Fixtures for tests of a build. Everything of pyggml is imported when a test asks for it, not before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from pyggml.builder.record import Build
    from pyggml.clock import Costs, Prediction
    from pyggml.ggml import Device, Scheduler
    from pyggml.native.vdev_config import VirtualDeviceConfig


class MakeDevices(Protocol):
    """What the fixture `virtual_devices` gives."""

    def __call__(self, count: int | None = None, **options: Any) -> VirtualDeviceConfig: ...


class MakeScheduler(Protocol):
    """What the fixture `scheduler` gives."""

    def __call__(self, *devices: Device, **options: Any) -> Scheduler: ...


class PredictTimes(Protocol):
    """What the fixture `clock` gives."""

    def __call__(self, costs: Costs | str | Path, work: Callable[[], object]) -> Prediction: ...


class TinyModel(Protocol):
    """What the fixture `tiny_model` gives."""

    def __call__(self, arch: str, kind: str = "dense") -> Path: ...


@pytest.fixture(scope="session")
def pyggml_build(request: pytest.FixtureRequest) -> Build:
    """The build of PYGGML_BUILD, or the active one of the project around pytest's root directory.

    Without one, the test is skipped with the command that makes it. A project that builds on demand overrides
    this fixture in its conftest.py.
    """
    from pyggml.errors import PyggmlError
    from pyggml.native.load import active_build

    try:
        return active_build(request.config.rootpath)
    except PyggmlError as error:
        pytest.skip(str(error).replace("\n", ". "))


@pytest.fixture
def virtual_devices(pyggml_build: Build) -> Iterator[MakeDevices]:
    """`virtual_devices(count, ...)`: devices in this process that look like GPUs, until the test ends.

    Arguments are the attributes of pyggml.native.vdev_config.VirtualDeviceConfig. A second call replaces the
    devices of the first. The ledger is cleared and on; injected faults end with the test.
    With `races=True` the test fails at its end if two operations raced.
    """
    from pyggml.native.load import load
    from pyggml.native.races import read_races
    from pyggml.native.vdev_config import VirtualDeviceConfig, install_devices, remove_devices

    bindings = load(pyggml_build)
    if not bindings.has_vdev:
        pytest.skip("this build has no virtual devices. Make them with: pyggml build")

    def make(count: int | None = None, **options: Any) -> VirtualDeviceConfig:
        config = VirtualDeviceConfig(count, **options)
        install_devices(bindings, config)
        return config

    yield make
    races = read_races(bindings)
    remove_devices(bindings)
    bindings.lib.pyggml_vdev_ledger_clear()
    if races:
        pytest.fail("\n".join(f"race: {race.text}" for race in races), pytrace=False)


@pytest.fixture
def clock(pyggml_build: Build) -> PredictTimes:
    """`clock(costs, work)`: calls `work()` and predicts when what it does on virtual devices would happen.

    `costs` is a preset, a TOML file or pyggml.clock.Costs; the result is a pyggml.clock.Prediction: a model's, not a
    measurement (docs/clock.md).
    """
    from pyggml.clock import Costs, read_costs, replay
    from pyggml.native.load import load
    from pyggml.native.timeline import read_timeline

    bindings = load(pyggml_build)

    def predict(costs: Costs | str | Path, work: Callable[[], object]) -> Prediction:
        known = costs if isinstance(costs, Costs) else read_costs(costs)
        bindings.lib.pyggml_vdev_timeline_enable(1)
        try:
            work()
            return replay(read_timeline(bindings), known)
        finally:
            bindings.lib.pyggml_vdev_timeline_enable(0)

    return predict


@pytest.fixture
def scheduler(pyggml_build: Build) -> Iterator[MakeScheduler]:
    """`scheduler(device, ...)`: a Scheduler over backends of these devices and the CPU, until the test ends.

    Options are those of pyggml.ggml.Scheduler; without devices, it has the CPU alone.
    """
    from pyggml.ggml import Scheduler, cpu
    from pyggml.native.load import load

    load(pyggml_build)
    made: list[Scheduler] = []

    def make(*devices: Device, **options: Any) -> Scheduler:
        made.append(Scheduler([*(device.backend() for device in devices), cpu().backend()], **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def tiny_model(pyggml_build: Build) -> TinyModel:
    """`tiny_model(arch, kind="dense")`: the path of upstream's tiny random model, kept with the build.

    `kind` is `dense` or `moe`; the first use of an architecture writes it, in a second or so.
    """
    from pyggml.errors import UsageError
    from pyggml.models.tiny import tiny_models

    def model(arch: str, kind: str = "dense") -> Path:
        files = tiny_models(pyggml_build, arch).files
        wanted = f"{arch}-{kind}.gguf"
        for path in files:
            if path.name == wanted:
                return path
        raise UsageError(
            f"there is no tiny model {wanted}", f"There are: {', '.join(path.name for path in files)}."
        )

    return model
