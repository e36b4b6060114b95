"""Images: safe decoding, encoding, and perceptual hashes. Pillow is imported here and nowhere else."""
