"""Streams of samples: images and other records with bytes, from Arrow shards and tars."""
