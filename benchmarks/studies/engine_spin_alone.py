"""One of the independent processes of the ideal: `engine_spin_alone.py NUM_ITEMS NUM_STEPS` prints (began, ended)."""

import sys

from engine_functions import spin

if __name__ == "__main__":
    num_items, num_steps = int(sys.argv[1]), int(sys.argv[2])
    spans = [spin(num_steps) for _ in range(num_items)]
    print(spans[0][0], spans[-1][1])
