"""Usage ledgers: when the requests of some sessions ran and how many ids they brought."""

from shadow_reader.replay.ledger.file import read_ledger, write_ledger
from shadow_reader.replay.ledger.ledger import Ledger, Session, ledger_of
from shadow_reader.replay.ledger.turn import Turn

__all__ = ["Ledger", "Session", "Turn", "ledger_of", "read_ledger", "write_ledger"]
