"""Readers of samples, records that consist of several files: folders of images and sounds, and WebDataset tars.

A folder is planned by `sample_folder` and read by `sample_reader`; a tar is planned by `tar_columns` and read by
`webdataset`, from the members that `tar_samples` groups.
"""
