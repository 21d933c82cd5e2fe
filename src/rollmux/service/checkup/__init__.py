"""What `rollmux doctor` looks at: this machine, the controller's folder, and the controller from outside."""
