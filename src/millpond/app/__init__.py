"""The application's side: declare queues and tasks, enqueue, look, run an embedded worker."""

from millpond.app.batch import Batch
from millpond.app.declared import Declarations
from millpond.app.pond import Millpond
from millpond.app.status import Status

__all__ = ["Batch", "Declarations", "Millpond", "Status"]
