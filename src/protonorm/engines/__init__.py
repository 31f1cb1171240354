"""Where clients live: in this process, in others, on a cluster, or at their owners'."""

from protonorm.core.registry import Entry

ENGINES: dict[str, Entry] = {
    "serial": Entry("protonorm.engines.serial:Serial", "all clients in this process, one after the other"),
    "processes": Entry(
        "protonorm.engines.processes.engine:Processes", "clients in one process for each core, side by side"
    ),
}
