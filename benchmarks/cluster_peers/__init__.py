"""What `benchmarks/cluster.py` times: programs on Ray with distgrad and by hand, torch's DistributedDataParallel, and
plans for clusters that are not there.

`on_ray` has what runs in the driver's own process; `by_hand` the remote functions that a user of Ray would write; `ddp`
is a server for `steps.client`; `paper` plans and runs nothing; `bars` says what must hold. The model and its inputs are
those of `steps`.
"""
