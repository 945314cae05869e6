"""The server: which clients get jobs, and how it uses what comes back."""
