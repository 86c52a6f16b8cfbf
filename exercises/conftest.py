"""The exercises under pytest. (`minibatcher grade` does without this file.)"""

from minibatcher.grading.plugin import (  # noqa: F401
    ex,
    pytest_addoption,
    pytest_configure,
    pytest_pyfunc_call,
    pytest_report_teststatus,
    pytest_terminal_summary,
)
