"""Reading over a usage ledger, simulated: the live lease, plan and loop on a virtual clock."""
