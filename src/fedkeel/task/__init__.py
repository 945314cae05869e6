"""What a model is trained for: the loss that is minimised and the metrics by which it is judged."""
