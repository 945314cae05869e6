"""The tables and figures of five papers: their settings, their printed figures, and how to run them smaller."""
