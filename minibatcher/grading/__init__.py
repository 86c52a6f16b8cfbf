"""The grader of the exercises. In a notebook: `from minibatcher.grading import check; check("3.2")`."""

from minibatcher.grading.checks import (
    Wrong,
    exercise,
    expect,
    expect_error,
    expect_timeline,
    part,
    show,
    timeline,
)
from minibatcher.grading.notebook import check

__all__ = ["Wrong", "check", "exercise", "expect", "expect_error", "expect_timeline", "part", "show", "timeline"]
