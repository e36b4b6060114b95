"""Recipe files: YAML to a `Recipe` with steps, and back.

`yaml_tree` parses YAML 1.2 as plain data with the line of every value, and changes it by `--set`; `load` turns the tree
into structs and imports the classes of the steps that it names; `dump` writes a recipe in its shortest form.
`templates` are recipes for common jobs, with sample data.
"""
