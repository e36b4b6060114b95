"""What happens to records: frozen, validated, picklable descriptions and their kernels."""
