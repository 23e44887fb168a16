"""Files of costs: what is read, and what is refused with the key and a way out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pyggml.clock.costs import PRESETS, DeviceCost, HostCost, LinkCost, PeerCost, parse_costs, read_costs
from pyggml.errors import PyggmlError, UsageError

DEVICE = "[[device]]\nbytes_per_second = 1\nflops_per_second = 2\n"
LINK = "[[link]]\nbytes_per_second = 3\n"


@pytest.mark.parametrize("name", ["one-gpu", "two-gpus", "four-gpus"])
def test_presets_can_be_read(name: str) -> None:
    costs = read_costs(name)
    assert name in PRESETS
    assert costs.host.split > costs.host.call > 0


def test_all_that_a_file_can_say(tmp_path: Path) -> None:
    text = (
        DEVICE
        + "launch = 0.5\n[[device]]\nbytes_per_second = 10\nflops_per_second = 20\n"
        + LINK
        + 'latency = 0.25\nroot = "r"\n[root.r]\nbytes_per_second = 7\n[host]\ncall = 1\nsplit = 2\n'
        + "[[peer]]\ndevices = [2, 0]\nbytes_per_second = 9\n"
    )
    (tmp_path / "costs.toml").write_text(text, "utf-8")
    costs = read_costs(tmp_path / "costs.toml")
    assert [costs.device(number) for number in (0, 1, 5)] == [
        DeviceCost(1, 2, 0.5), DeviceCost(10, 20), DeviceCost(10, 20)
    ]  # fmt: skip
    assert costs.link(3) == LinkCost(3, 0.25, "r")
    assert (costs.host, costs.roots) == (HostCost(1, 2), {"r": 7})
    assert (costs.peer(0, 2), costs.peer(0, 1)) == (PeerCost((2, 0), 9), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"costs has no \[\[device\]\]"),
        (DEVICE, r"costs has no \[\[link\]\]"),
        (DEVICE + LINK + "[hots]\n", "costs: 'hots' is unknown\nDid you mean 'host'"),
        (DEVICE + "lunch = 1\n" + LINK, r"\[\[device\]\] 0: 'lunch' is unknown\nDid you mean 'launch'"),
        (DEVICE + "[[link]]\nlatency = 1\n", r"\[\[link\]\] 0 has no bytes_per_second"),
        (
            DEVICE + "[[link]]\nbytes_per_second = 0\n",
            "bytes_per_second is 0\nIt must be a number, more than 0",
        ),
        (DEVICE + "[[link]]\nbytes_per_second = true\n", "bytes_per_second is True"),
        (DEVICE + "[[link]]\nbytes_per_second = inf\n", "bytes_per_second is inf"),
        (DEVICE + '[[link]]\nbytes_per_second = "1"\n', "bytes_per_second is '1'"),
        (DEVICE + LINK + "latency = -1\n", "latency is -1\nIt must be a number, 0 or more"),
        (DEVICE + LINK + "root = 1\n", "root is 1"),
        (DEVICE + LINK + 'root = "x"\n', "there is no root 'x'"),
        (DEVICE + LINK + "[root.x]\n", r"\[root.x\] has no bytes_per_second"),
        (DEVICE + LINK + "[[peer]]\ndevices = [1, 1]\nbytes_per_second = 1\n", r"devices is \[1, 1\]"),
        (DEVICE + LINK + "[[peer]]\ndevices = [-1, 1]\nbytes_per_second = 1\n", r"devices is \[-1, 1\]"),
        (DEVICE.replace("[[device]]", "[device]") + LINK, "must be written with double brackets"),
        (DEVICE + LINK + "[[host]]\n", r"\[host\] is not a table"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(PyggmlError, match=message) as caught:
        parse_costs(tomllib.loads(text), "costs")
    assert str(caught.value).count("\n") == 1


def test_neither_a_preset_nor_a_file(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="'two-gpu' are neither a preset nor a file\nDid you mean 'two-gpus'"
    ):
        read_costs("two-gpu")
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(PyggmlError, match="is not TOML"):
        read_costs(tmp_path / "x")
    with pytest.raises(PyggmlError, match="cannot read"):
        read_costs(tmp_path)
