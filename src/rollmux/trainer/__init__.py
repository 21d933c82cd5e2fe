"""The reference job: responses become gradients, gradients an update."""
