"""Execution backends for simulated clients: this process, worker processes, or a Ray cluster."""

from protonorm.core.registry import Entry

ENGINES: dict[str, Entry] = {
    "serial": Entry("protonorm.engines.serial:Serial", "all clients in this process, one after the other"),
    "processes": Entry("protonorm.engines.processes:Processes", "clients in one process for each core, side by side"),
    "ray": Entry(
        "protonorm.engines.ray.engine:Ray",
        "clients in actors on a Ray cluster, or on this machine; ray:num_cpus=…,num_gpus=… is what each actor gets",
        {"extra": "ray"},
    ),
}
