"""Where clients live: in this process, in others, on a cluster, or at their owners'."""

from protonorm.core.registry import Entry

ENGINES: dict[str, Entry] = {
    "serial": Entry("protonorm.engines.serial:Serial", "all clients in this process, one after the other"),
    "processes": Entry(
        "protonorm.engines.processes.engine:Processes", "clients in one process for each core, side by side"
    ),
    "ray": Entry(
        "protonorm.engines.ray.engine:Ray",
        "clients in actors on a Ray cluster, or on this machine; ray:num_cpus=…,num_gpus=… is what each actor gets",
        {"extra": "ray"},
    ),
}
