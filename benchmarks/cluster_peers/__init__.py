"""What `benchmarks/cluster.py` times: programs on Ray with distgrad and by hand, torch's DistributedDataParallel, and
plans for clusters that do not exist.

`on_ray` runs in the driver's own process; `by_hand` has the remote functions that a user of Ray would write; `ddp` is a
server for `steps.client`; `paper` only plans; `bars` has the targets. The model and its inputs are those of `steps`.
"""
