"""One torch thread, fixed seeds, no network, and the fixtures that several files share."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["COLUMNS"] = "160"  # of the tables that are printed, whoever runs the tests

import pytest
import torch

if not torch.cuda.is_available():  # before transformers imports triton: the kernels run in Triton's interpreter
    os.environ.setdefault("TRITON_INTERPRET", "1")

from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("minibatcher", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("minibatcher")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny():
    from minibatcher.model.load import load

    return load("tiny")


@pytest.fixture(scope="session")
def smollm2():
    from minibatcher.model.load import load

    try:
        return load("smollm2")
    except ValueError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def seen(record_property):
    """seen(text): a figure that is reported at the end of the run and not asserted, for machines are busy."""
    return lambda text: record_property("seen", text)


def pytest_terminal_summary(terminalreporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "seen":
                terminalreporter.write_line(f"{report.nodeid}: {value}")
