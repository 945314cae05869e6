"""Many runs: a plan of them, the engine that runs it, their results, and how certain these are."""
