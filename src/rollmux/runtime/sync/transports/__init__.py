"""How connections are made, and how the bytes of pieces cross them."""
