"""The viewer in a terminal: a described row as lines, the state that keys change, and the terminal itself."""
