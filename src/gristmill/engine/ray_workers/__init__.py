"""Workers on a Ray cluster. Ray places them and carries bytes; the scheduler and the failure handler decide."""
