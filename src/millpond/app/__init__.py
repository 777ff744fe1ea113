"""The application's side: declare queues and tasks, enqueue, look, run an embedded worker."""

from millpond.app.batch import Batch
from millpond.app.declared import Declarations
from millpond.app.pond import Millpond
from millpond.app.selection import Selection
from millpond.app.status import Status
from millpond.app.told import Backup, Done, Event, Failure, Failures

__all__ = [
    "Backup",
    "Batch",
    "Declarations",
    "Done",
    "Event",
    "Failure",
    "Failures",
    "Millpond",
    "Selection",
    "Status",
]
