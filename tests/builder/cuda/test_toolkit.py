"""Finding a toolkit: the system's, the wheels, or the one asked for; and why each other was not taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import Driver
from pyggml.builder.cuda.parts import PARTS, compiler_version, inspect, known_numbers
from pyggml.builder.cuda.system import system_toolkits
from pyggml.builder.cuda.toolkit import Toolkit, choose_toolkit
from pyggml.builder.cuda.wheels import Wheels, find_wheels
from pyggml.errors import PyggmlError, UsageError
from tests.builder.cuda.conftest import H200, NO_DRIVER, MakeToolkit, make_wheel, make_wheels, script

NO_WHEELS = Wheels(None, {}, tuple(part.wheel for part in PARTS))
DRIVER_12_2 = Driver("ready", (12, 2), "535.54.03", (H200,))


def choose(*roots: Path, wheels: Wheels = NO_WHEELS, driver: Driver = NO_DRIVER, **options: bool) -> Toolkit:
    return choose_toolkit(None, driver, roots=roots, wheels=wheels, **options)


def test_complete_toolkit_is_found_with_version_and_architectures(toolkit: MakeToolkit) -> None:
    root = toolkit()
    assert inspect(root).missing == ()
    assert compiler_version(root / "bin" / "nvcc") == "12.4.131"
    assert known_numbers(root / "bin" / "nvcc") == (50, 60, 70, 75, 80, 86, 89, 90)
    found = choose(root)
    assert (found.kind, found.root, found.release, found.raw) == ("system", root, (12, 4), False)


@pytest.mark.parametrize(
    ("gone", "part"),
    [
        ("ptxas", "nvidia-cuda-nvcc"),
        ("cicc", "nvidia-nvvm"),
        ("host_config", "nvidia-cuda-crt"),
        ("cuda_runtime.h", "nvidia-cuda-runtime"),
        ("libcudart", "nvidia-cuda-runtime"),
        ("cub.cuh", "nvidia-cuda-cccl"),
        ("cublas_v2.h", "nvidia-cublas"),
        ("cublasLt", "nvidia-cublas"),
    ],
)
def test_each_missing_file_is_missed(toolkit: MakeToolkit, gone: str, part: str) -> None:
    assert [one.wheel for one in inspect(toolkit(without=[gone])).missing] == [part]


def test_only_the_driver_stub_missing_means_links_are_needed(toolkit: MakeToolkit) -> None:
    root = toolkit(without=["stubs/"])
    assert inspect(root).missing == ()
    # A machine with a driver's development files has one elsewhere.
    elsewhere = any(
        Path(path, "libcuda.so").is_file() for path in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    )
    assert inspect(root).raw is not elsewhere


def test_incomplete_system_toolkit_gives_way_to_the_wheels_and_says_why(
    toolkit: MakeToolkit, tmp_path: Path
) -> None:
    root = toolkit(version="13.0.88", without=["cublas"])
    site = make_wheels(tmp_path / "site")
    found = choose(root, wheels=find_wheels([str(site)]))
    assert (found.kind, found.version, found.raw) == ("wheels", "13.0.88", True)
    assert found.root == site / "nvidia" / "cu13"
    assert found.rejected == ((root, "CUDA 13.0.88 has no cuBLAS"),)
    assert "nvidia-cublas==13.0.2.14" in found.key


def test_wheels_of_its_version_complete_a_system_toolkit(toolkit: MakeToolkit, tmp_path: Path) -> None:
    root = toolkit(version="13.0.88", without=["cublas"])
    site = make_wheels(
        tmp_path / "site", dict.fromkeys(("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt"), "")
    )
    found = choose(root, wheels=find_wheels([str(site)]))
    assert (found.kind, found.version, found.raw) == ("system", "13.0.88", True)
    assert found.roots == (root, site / "nvidia" / "cu13")
    assert found.wheels == {"nvidia-cublas": "13.0.2.14"}
    assert [one for one, _ in found.rejected] == [site / "nvidia" / "cu13"]
    # The same by its name.
    given = choose_toolkit(root, NO_DRIVER, wheels=find_wheels([str(site)]))
    assert (given.kind, given.completed_by) == ("given", site / "nvidia" / "cu13")


@pytest.mark.parametrize(
    ("version", "driver"), [("12.4.131", NO_DRIVER), ("13.0.88", DRIVER_12_2)], ids=["toolkit", "driver"]
)
def test_wheels_of_another_version_or_an_old_driver_complete_nothing(
    toolkit: MakeToolkit, tmp_path: Path, version: str, driver: Driver
) -> None:
    root = toolkit(version=version, without=["cublas"])
    site = make_wheels(tmp_path / "site", {"nvidia-cuda-nvcc": ""})
    with pytest.raises(PyggmlError, match=r"no complete CUDA toolkit.*has no cuBLAS"):
        choose(root, wheels=find_wheels([str(site)]), driver=driver)


def test_a_script_called_nvcc_is_no_toolkit_to_complete(toolkit: MakeToolkit, tmp_path: Path) -> None:
    real = toolkit(version="13.0.88") / "bin" / "nvcc"
    script(tmp_path / "local" / "bin" / "nvcc", f"import os, sys; os.execv({str(real)!r}, sys.argv)")
    wheels = find_wheels([str(make_wheels(tmp_path / "site"))])
    with pytest.raises(PyggmlError, match="has no compiler driver"):
        choose_toolkit(tmp_path / "local", NO_DRIVER, wheels=wheels)


def test_nothing_at_all_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(PyggmlError, match="no complete CUDA toolkit") as caught:
        choose()
    assert "pip install 'pyggml[cuda]'" in str(caught.value.hint)
    assert len(str(caught.value).splitlines()) == 2


def test_missing_wheels_are_named(tmp_path: Path) -> None:
    site = make_wheels(tmp_path / "site", {"nvidia-cublas": "", "nvidia-nvvm": ""})
    with pytest.raises(PyggmlError, match="lack nvidia-nvvm, nvidia-cublas"):
        choose(wheels=find_wheels([str(site)]))


@pytest.mark.parametrize(
    "versions",
    [{"nvidia-cuda-nvcc": "13.1.80"}, {"nvidia-cublas": "12.8.4.1"}, {"nvidia-cuda-runtime": "12.9.79"}],
)
def test_wheels_of_mixed_versions_are_refused(tmp_path: Path, versions: dict[str, str]) -> None:
    site = make_wheels(tmp_path / "site", versions)
    with pytest.raises(PyggmlError, match="different CUDA versions") as caught:
        find_wheels([str(site)])
    assert next(iter(versions.values())) in caught.value.message
    assert "pip install" in str(caught.value.hint)


def test_cublas_counts_its_versions_for_itself(tmp_path: Path) -> None:
    site = make_wheels(tmp_path / "site", {"nvidia-cublas": "13.2.0.9"}, release="13.1.80")
    assert find_wheels([str(site)]).complete


def test_wheels_in_two_places_are_refused(tmp_path: Path) -> None:
    one = make_wheels(tmp_path / "one", {"nvidia-cublas": ""})
    make_wheel(tmp_path / "two", "nvidia-cublas", "13.0.2.14")
    with pytest.raises(PyggmlError, match="different directories"):
        find_wheels([str(one), str(tmp_path / "two")])


def test_damaged_wheels_are_to_be_reinstalled(tmp_path: Path) -> None:
    site = make_wheels(tmp_path / "site")
    (site / "nvidia" / "cu13" / "nvvm" / "bin" / "cicc").unlink()
    with pytest.raises(PyggmlError, match="no device code generator") as caught:
        choose(wheels=find_wheels([str(site)]))
    assert "Reinstall" in str(caught.value.hint)


def test_too_old_toolkit_is_refused_by_version(toolkit: MakeToolkit) -> None:
    root = toolkit(version="11.4.152")
    with pytest.raises(PyggmlError, match=r"CUDA 11\.4\.152 is older than the sources need \(11\.7\)"):
        choose(root)
    with pytest.raises(PyggmlError, match="older than the sources need"):
        choose_toolkit(root, NO_DRIVER)


def test_driver_too_old_says_what_it_runs_and_what_to_do(toolkit: MakeToolkit) -> None:
    root = toolkit(version="13.0.88")
    with pytest.raises(PyggmlError, match=r"driver 535\.54\.03, which runs CUDA up to 12\.2") as caught:
        choose(root, driver=DRIVER_12_2)
    assert "580 or newer for CUDA 13" in str(caught.value.hint)
    with pytest.raises(PyggmlError, match="too new") as caught:
        choose_toolkit(root, DRIVER_12_2)
    assert "Update the driver" in str(caught.value.hint)


def test_older_toolkit_is_taken_for_an_old_driver(toolkit: MakeToolkit) -> None:
    new, old = toolkit("cuda-13", "13.0.88"), toolkit("cuda-12")
    found = choose(new, old, driver=DRIVER_12_2)
    assert found.root == old
    assert "too new" in found.rejected[0][1]


def test_minor_versions_of_the_driver_do_not_matter(toolkit: MakeToolkit) -> None:
    assert choose(toolkit(version="12.9.86"), driver=DRIVER_12_2).version == "12.9.86"


def test_driver_does_not_matter_for_another_machine(toolkit: MakeToolkit) -> None:
    assert choose(toolkit(version="13.0.88"), driver=DRIVER_12_2, for_here=False).release == (13, 0)


def test_nvcc_that_does_not_run_is_told(toolkit: MakeToolkit) -> None:
    root = toolkit()
    (root / "bin" / "nvcc").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(PyggmlError, match="its nvcc does not run"):
        choose(root)


def test_asked_for_toolkit_by_any_of_its_names(toolkit: MakeToolkit) -> None:
    root = toolkit()
    for name in (root, root / "bin", root / "bin" / "nvcc"):
        assert choose_toolkit(name, NO_DRIVER).root == root
    with pytest.raises(UsageError, match="is no CUDA toolkit"):
        choose_toolkit(root.parent, NO_DRIVER)
    incomplete = toolkit("other", without=["cublas"])
    with pytest.raises(PyggmlError, match="has no cuBLAS"):
        choose_toolkit(incomplete, NO_DRIVER)


def test_order_is_environment_then_path_then_usual_places(toolkit: MakeToolkit, tmp_path: Path) -> None:
    named = toolkit("named")
    on_path = toolkit("real")
    usual = [toolkit(f"usr/cuda-{version}") for version in ("9.2", "12.4", "13.0")]
    place = usual[0].parent
    (place / "cuda").symlink_to(usual[1])
    # A script on PATH that starts the nvcc of a toolkit elsewhere.
    starter = f"import os, sys; os.execv({str(on_path / 'bin/nvcc')!r}, [{str(on_path / 'bin/nvcc')!r}, *sys.argv[1:]])"
    script(tmp_path / "bin" / "nvcc", starter)
    env = {"CUDA_HOME": str(named), "PATH": str(tmp_path / "bin")}
    found = list(system_toolkits(env, (place, tmp_path / "nowhere")))
    assert found == [named, on_path, place / "cuda", usual[2], usual[0]]
