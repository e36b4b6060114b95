"""The workers of a run: who owns them, and which of them serve the present job."""
