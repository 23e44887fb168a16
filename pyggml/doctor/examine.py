"""Runs all checks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyggml.doctor.cuda import cuda_rows
from pyggml.doctor.packages import package_rows, registry_rows
from pyggml.doctor.project import project_rows
from pyggml.doctor.report import DoctorReport, Row
from pyggml.doctor.tools import tool_rows
from pyggml.project import Project


def examine(
    project: Project | None, here: Path, *, offline: bool = False, env: Mapping[str, str] | None = None
) -> DoctorReport:
    """Check the machine and the project; nothing is changed or installed.

    Args:
        project: None if there is none.
        here: the working directory.
        offline: do not use the network.
        env: the environment to check, by default the process's.
    """
    env = os.environ if env is None else env
    if offline:
        network: tuple[Row, ...] = (Row("network", "registry", "optional", "not checked (--offline)"),)
    else:
        network = registry_rows()
    online = any(row.state == "ok" for row in network)
    return DoctorReport(
        (
            *tool_rows(env, online),
            *package_rows(),
            *network,
            *cuda_rows(env),
            *project_rows(project, here, online),
        )
    )
