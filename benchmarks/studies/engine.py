"""The engine against its peers, in one run: `python benchmarks/studies/engine.py [--repeats N] [--only NAME] [--json]`.

A peer's spawned workers import this file again, and that is part of the time they need. So it holds nothing; the
code is in `engine_contests.py`.
"""

if __name__ == "__main__":
    from engine_contests import main

    main()
