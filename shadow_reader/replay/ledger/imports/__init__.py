"""From the records of agents, proxies and benchmarks to the turns of a ledger."""

from shadow_reader.replay.ledger.imports.detect import import_records
from shadow_reader.replay.ledger.imports.requests import Imported

__all__ = ["Imported", "import_records"]
