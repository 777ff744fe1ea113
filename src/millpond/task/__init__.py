"""Tasks: typed functions that can be enqueued, their options, and the handles of their jobs."""

from millpond.task.decorator import TaskDecorator, TaskOptions
from millpond.task.jobs import Attempt, Job, Lease, Progress
from millpond.task.options import Options
from millpond.task.refs import JobRef
from millpond.task.task import Bound, Submitter, Task

__all__ = [
    "Attempt",
    "Bound",
    "Job",
    "JobRef",
    "Lease",
    "Options",
    "Progress",
    "Submitter",
    "Task",
    "TaskDecorator",
    "TaskOptions",
]
