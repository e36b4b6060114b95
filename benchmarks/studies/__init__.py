"""Questions that are asked once in a while, each by a script of its own: engines, exports, disks, scores."""
