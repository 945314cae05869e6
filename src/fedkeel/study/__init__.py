"""Many runs: a plan of them, the engine that runs it, what they came to, and how sure that is."""
