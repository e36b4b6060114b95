"""Documents beside their peers, in one run: `python benchmarks/documents.py --help`; the code is in
`documents_contests.py`.
"""

if __name__ == "__main__":
    from documents_contests import main

    main()
