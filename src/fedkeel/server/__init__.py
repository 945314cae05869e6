"""The server: whom it gives jobs, and what it makes of what comes back."""
