"""Recipe files and the steps they name: YAML to steps and back."""
