"""What the benchmarks of money and of the paper's figures are made of."""
