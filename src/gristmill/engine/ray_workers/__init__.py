"""Workers on a Ray cluster. Ray places them and carries bytes; the scheduler and the failure handler decide.

`cluster` is the one door to Ray. `ray_worker` is an actor as the driver sees it. On the nodes run the `actor_shell`,
which travels by value, and inside it an `actor_worker`: a worker, or the agent that watches all workers of a node.
"""
